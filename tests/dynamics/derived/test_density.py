"""The density of two-layer neurons: against the drift equation on a grid, against samples and against networks."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.interpolate

import widefield as wf
from tests.dynamics.question import density, experiment, predict
from tests.simulate.students import agrees

NET, TASK = wf.DNN(1, "tanh", readout_variance=1.2), wf.Task([[1.1, 0.3]], [1.0])
KERNEL = (1.1**2 + 0.3**2) / 2
PHYSICS = {"richness": 1.5, "rate": 0.1, "steps": 6}
full = pytest.mark.full


def drift_equation(kernel, v, label, gamma, time, *, printed=False, n=160, reach=9.0, n_steps=160):
    """∂p/∂t + ∇·(p drift) = 0 of tanh neurons on a periodic grid, derivatives by Fourier: axis, p and f at the end.

    Outputs are moments of p itself. ``printed``: Eq. 67 as it stands, without γ0 before p z φ''.
    """
    axis = reach * (2 * np.arange(n) / n - 1)
    h, z = np.meshgrid(axis, axis, indexing="ij")
    cell = (axis[1] - axis[0]) ** 2
    wave = 1j * np.fft.fftfreq(n, 2 * reach / n) * 2 * np.pi
    wave[n // 2] = 0
    along_h = lambda q: np.fft.ifft(wave[:, None] * np.fft.fft(q, axis=0), axis=0).real  # noqa: E731
    along_z = lambda q: np.fft.ifft(wave * np.fft.fft(q, axis=1), axis=1).real  # noqa: E731
    value, slope = np.tanh(h), 1 / np.cosh(h) ** 2
    bend = -2 * value * slope

    def change(p):
        f = np.sum(p * z * value) * cell / gamma
        push = gamma * (label - f)
        speed_h, speed_z = push * kernel * slope * z, push * v * value
        missing = (push - push / gamma) * kernel * bend * z * p if printed else 0.0
        return missing - along_h(p * speed_h) - along_z(p * speed_z)

    p = np.exp(-(h**2) / (2 * kernel) - z**2 / (2 * v)) / (2 * np.pi * np.sqrt(kernel * v))
    dt = time / n_steps
    for _ in range(n_steps):
        a = change(p)
        b = change(p + dt / 2 * a)
        c = change(p + dt / 2 * b)
        p = p + dt / 6 * (a + 2 * b + 2 * c + change(p + dt * c))
    return axis, p, np.sum(p * z * value) * cell / gamma, np.sum(p) * cell


@full
def test_flow_solves_the_drift_equation():
    found = density(NET, TASK, **PHYSICS, flow=True, nodes=41, reach=3.0)
    axis, p, f, mass = drift_equation(KERNEL, 1.2, 1.0, 1.5, 0.6)
    np.testing.assert_allclose(mass, 1, rtol=0, atol=1e-9)
    outputs = predict(NET, TASK, **PHYSICS, flow=True, quantities="prediction", progress=False).prediction
    np.testing.assert_allclose(outputs[-1, 0, 0], f, rtol=0, atol=1e-4)
    spline = scipy.interpolate.RectBivariateSpline(axis, axis, p, kx=5, ky=5)
    right = spline(found.preactivation.values.ravel(), found.pregradient.values.ravel(), grid=False)
    np.testing.assert_allclose(found.density.values.ravel(), right, rtol=0, atol=2e-4 * right.max())
    moved = np.abs(found.density.values / np.exp(-(found.initial**2) / 2 / KERNEL - found.initial_**2 / 2.4).values)
    assert moved.max() / moved.min() > 1.5, "neurons have moved together and apart"
    _, _, _, lost = drift_equation(KERNEL, 1.2, 1.0, 1.5, 0.6, printed=True)
    assert abs(lost - 1) > 0.02, "as printed, probability is not conserved"


def cells(found, edges=(-4.0, -1.2, -0.5, 0.0, 0.5, 1.2, 4.0), n=40):
    """Probabilities of cells of the (h, z) plane from a density on the image of a grid."""
    h, z, p = (found.data[name].values.ravel() for name in ("preactivation", "pregradient", "density"))
    at = np.concatenate([a + (b - a) * (np.arange(n) + 0.5) / n for a, b in pairwise(edges)])
    size = np.repeat(np.diff(edges) / n, n)
    values = scipy.interpolate.griddata((h, z), p, tuple(np.meshgrid(at, at, indexing="ij")), fill_value=0.0)
    return (
        (values * np.multiply.outer(size, size)).reshape(len(edges) - 1, n, len(edges) - 1, n).sum(axis=(1, 3)).ravel()
    )


def counted(h, z, edges=(-4.0, -1.2, -0.5, 0.0, 0.5, 1.2, 4.0)):
    """Shares of neurons in the same cells."""
    return np.histogram2d(h, z, bins=(edges, edges))[0].ravel() / len(h)


@full
def test_samples_and_networks_have_this_density():
    found = density(NET, TASK, **PHYSICS, nodes=151, reach=5.0)
    theory = cells(found)
    assert 0.99 < theory.sum() < 1
    asked = {"quantities": ("preactivation", "pregradient"), "progress": False}
    drawn = [predict(NET, TASK, **PHYSICS, **asked, seed=seed) for seed in range(8)]
    shares = [counted(d.preactivation.values[0, :, 0], d.pregradient.values[0, :, 0]) for d in drawn]
    np.testing.assert_allclose(
        np.mean(shares, axis=0), theory, rtol=0, atol=2e-3
    )  # 65536 neurons: 2 to 4 σ of independent ones
    networks = []
    for width in (400, 800):
        trial = experiment(NET, TASK, **PHYSICS, **asked, width=width, replicates=200, seed=width)
        pairs = zip(trial.preactivation.values[:, 0, :, 0], trial.pregradient.values[:, 0, :, 0], strict=True)
        networks.append(np.array([counted(*pair) for pair in pairs]))
    samples = 2 * networks[1] - networks[0]
    assert agrees(theory, samples)
    richer = density(NET, TASK, **PHYSICS | {"richness": 2.0}, nodes=151, reach=5.0)
    assert not agrees(cells(richer), samples)


def test_bad_input_and_folds():
    bad = [("nodes", v) for v in ("a", True, 1, 2.5)] + [("reach", v) for v in ("a", True, 0, float("nan"))]
    for name, value in [*bad, ("rtol", "a"), ("rtol", 2), ("throw", "no")]:
        with pytest.raises(ValueError, match=f"`{name}` must"):
            wf.neuron_density(NET, TASK, wf.Training(0.1, 3), **{name: value})
    with pytest.raises(ValueError, match="`network` must have depth 1"):
        density(wf.DNN(2, "tanh"), TASK, **PHYSICS)
    with pytest.raises(ValueError, match="activation without kinks"):
        density(wf.DNN(1, "relu"), TASK, **PHYSICS)
    with pytest.raises(ValueError, match="`task` must have one sample"):
        density(NET, wf.Task(np.eye(2), [1.0, 2.0]), **PHYSICS)
    with pytest.raises(wf.SolveError, match="inaccurate"):
        density(NET, TASK, **PHYSICS | {"rate": 2.0}, nodes=41, rtol=0.1)
