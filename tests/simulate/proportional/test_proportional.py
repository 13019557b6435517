"""`simulate.proportional` against autograd on the literal network, closed forms and exact expectations."""

import jax
import numpy as np
import pytest

import widefield as wf
from widefield.simulate.networks.streams import streams
from widefield.simulate.proportional.sizes import targets_of
from widefield.simulate.proportional.training import Learner, Model

from ..calls import proportional
from ..students import agrees

SEED, STEPS = 5, 4
ISOTROPIC = {"dimension": 7, "width_ratio": 9 / 7}
COMMON = {"richness": 0.8, "rate": 0.07, "steps": STEPS, "label_noise": 0.3, "replicates": 1, "seed": SEED}
SPECTRUM = (np.arange(1.0, 8) ** -1.5, np.arange(1.0, 8) ** -1.2)
OVERLAP = np.array([[1.0, 0.3], [0.3, 0.5]])
CORRELATIONS = ("feature_correlation", "gradient_correlation")
CASES = {
    "descent": (wf.DNN(3, "linear"), ISOTROPIC | {"data_ratio": 5 / 7}, 5),
    "one layer": (wf.DNN(1, "linear"), ISOTROPIC | {"data_ratio": 11 / 7}, 11),
    "batches": (wf.DNN(2, "linear"), ISOTROPIC | {"batch_ratio": 5 / 7, "rate": [0.07, 0.02, 0.05, 0.03]}, 5),
    "population": (wf.DNN(2, "linear"), ISOTROPIC, None),
    "centered": (wf.DNN(2, "linear"), ISOTROPIC | {"data_ratio": 5 / 7, "centered": True, "paired": False}, 5),
    "residual": (wf.ResNet(4, "linear", 0.6), ISOTROPIC | {"data_ratio": 5 / 7}, 5),
    "widths": (wf.DNN(3, "linear", widths=(4 / 9, 1.0, 6 / 9)), ISOTROPIC | {"data_ratio": 5 / 7}, 5),
    "channels": (wf.DNN(2, "linear"), ISOTROPIC | {"data_ratio": 5 / 7, "target_overlap": OVERLAP}, 5),
    "channels, batches": (wf.DNN(2, "linear"), ISOTROPIC | {"batch_ratio": 5 / 7, "target_overlap": OVERLAP}, 5),
    "structured": (wf.DNN(2, "linear"), {"spectrum": SPECTRUM, "width": 6, "batch": 5}, 5),
    "structured, population": (wf.ResNet(2, "linear", 1.5), {"spectrum": SPECTRUM, "width": 6, "centered": True}, None),
}


class Literal:
    """Training by autograd of the network as it stands on the page, on the streams that the simulator documents."""

    def __init__(self, net, options, *, n_data, online):
        self.net, self.options, self.n_data, self.online = net, COMMON | options, n_data, online
        self.structured = "spectrum" in options
        self.lam, powers = SPECTRUM if self.structured else (np.ones(7), np.eye(7)[0])
        self.basis = np.diag(np.sqrt(self.lam))
        self.unit = 1.0 if self.structured else np.sqrt(7)
        self.sizes = [6] * net.depth if self.structured else [round(9 * a) for a in net.relative_widths]
        self.scale = self.unit / (self.sizes[-1] * self.options["richness"])
        self.target = np.sqrt(powers / self.lam)[None]  # coefficients of y
        if "target_overlap" in options:
            self.target = targets_of(OVERLAP, 7) / self.unit
            np.testing.assert_allclose(self.target @ self.target.T, OVERLAP, rtol=1e-13)
        self.slope = jax.jit(jax.grad(self.loss))

    def above(self, theta, h, first):
        """Preactivations of layer ``first`` and all above, given those of layer ``first``."""
        layers = [h]
        for W, n in zip(theta[first:-1], self.sizes[first - 1 :], strict=False):
            branch = layers[-1] @ W.T / np.sqrt(n)
            layers.append(branch if self.net.branch is None else layers[-1] + self.net.branch * branch)
        return layers

    def layers(self, theta, x):
        return self.above(theta, x @ theta[0].T / self.unit, 1)

    def output(self, theta, x):
        return self.scale * self.layers(theta, x)[-1] @ theta[-1].T

    def error(self, theta, start, x, y):
        f = self.output(theta, x)
        return y - (f - self.output(start, x) if self.options.get("centered") else f)

    def loss(self, theta, start, x, y, n):
        return (self.error(theta, start, x, y) ** 2).sum() / (2 * n)

    def row(self, theta, start, x, y, n, y_basis):
        """Losses, h^l and g^l from their meaning: error-weighted preactivations, derivatives of the output."""
        sigma2 = self.options["label_noise"]
        error = self.error(theta, start, x, y)
        test = (self.error(theta, start, self.basis, y_basis) ** 2).sum(axis=0) + sigma2
        train = test if self.n_data is None else (error**2).mean(axis=0)
        h = [self.unit / n * error.T @ layer for layer in self.layers(theta, x)]
        g = [(self.above(theta, np.eye(n), l + 1)[-1] @ theta[-1].T).T for l, n in enumerate(self.sizes)]
        return train, test, h, g

    def sample(self, rng, sign):
        """Inputs, labels and their number. The whole population is one input along every axis, weighted alike."""
        if self.n_data is None:
            return self.basis, sign * self.basis @ self.target.T, 1.0
        x = np.sqrt(self.lam) * rng.standard_normal((self.n_data, 7))
        noise = np.sqrt(self.options["label_noise"]) * rng.standard_normal((len(self.target), self.n_data))
        return x, sign * (x @ self.target.T + noise.T), float(self.n_data)

    def run_sign(self, sign):
        weights, readout, data = (streams(SEED, [0], k)[0] for k in (0, 1, 3))
        theta = [weights.standard_normal(shape) for shape in zip(self.sizes, (7, *self.sizes), strict=False)]
        theta.append(readout.standard_normal((len(self.target), self.sizes[-1])))
        start, rates = theta, np.broadcast_to(self.options["rate"], STEPS)
        raw = self.sizes[-1] * self.options["richness"] ** 2
        rows = []
        for t in range(STEPS + 1):
            sample = self.sample(data, sign) if self.online or t == 0 else sample
            rows.append(self.row(theta, start, *sample, sign * self.basis @ self.target.T))
            if t < STEPS:
                slope = self.slope(theta, start, *sample)
                theta = [w - raw * rates[t] * np.asarray(d) for w, d in zip(theta, slope, strict=True)]
        train, test, h, g = zip(*rows, strict=True)
        return train, test, self.correlations(h), self.correlations(g)

    def correlations(self, rows):
        layers = [np.array([row[l] for row in rows]) for l in range(len(self.sizes))]
        return [np.einsum("tcn,sdn->tscd", v, v) / v.shape[-1] for v in layers]

    def run(self):
        signs = (1.0, -1.0) if self.options.get("paired", True) else (1.0,)
        return [np.mean(rows, axis=0) for rows in zip(*map(self.run_sign, signs), strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_training_is_gradient_descent_by_autograd(name):
    net, options, n_data = CASES[name]
    trial = proportional(net, **COMMON | options, quantities=("train_loss", "test_loss", *CORRELATIONS))
    with jax.enable_x64(True):
        expected = Literal(net, options, n_data=n_data, online=bool({"batch", "batch_ratio"} & options.keys())).run()
    channels = "channels" in name
    for field, value in zip(("train_loss", "test_loss", *CORRELATIONS), expected, strict=True):
        values = np.asarray(value)
        assert values.shape[-1] == (2 if channels else 1)
        have = trial.data[field].values[0]
        np.testing.assert_allclose(have.reshape(values.shape), values, rtol=0, atol=1e-12 * np.abs(values).max())
    change = np.asarray(expected[1])
    assert np.all(np.abs(change[1:] - change[0]) > 1e-3), "training moves, so that the comparison can fail"


def test_small_richness_is_the_linear_model():
    """v(t) = (1 − ηΘ)^t w*, Θ = (W0ᵀW0 + |a|²)/N, at one hidden layer."""
    weights, readout = (streams(SEED, [0], k)[0].standard_normal(s) for k, s in ((0, (9, 7)), (1, (1, 9))))
    theta = (weights.T @ weights + np.sum(readout**2) * np.eye(7)) / 9
    v = np.sqrt(7) * np.eye(7)[0]
    expected = []
    for _ in range(STEPS + 1):
        expected.append(v @ v / 7 + 0.3)
        v = v - 0.07 * theta @ v
    run = COMMON | ISOTROPIC | {"richness": 1e-5, "centered": True}
    trial = proportional(wf.DNN(1, "linear"), **run)
    np.testing.assert_allclose(trial.test_loss[0], expected, rtol=1e-8)


def test_structured_inputs_of_equal_eigenvalues_are_isotropic():
    """λ = 1/D, γ0 → γ0/√D, η → ηD is the same network."""
    net = wf.ResNet(3, "linear", 0.7)
    D = 7
    plain = proportional(net, **COMMON | ISOTROPIC | {"batch_ratio": 5 / 7})
    scaled = COMMON | {"richness": 0.8 / np.sqrt(D), "rate": 0.07 * D}
    spectrum = (np.full(D, 1 / D), np.eye(D)[0])
    structured = proportional(net, **scaled, spectrum=spectrum, width=9, batch=5)
    np.testing.assert_allclose(structured.test_loss, plain.test_loss, rtol=1e-12)
    np.testing.assert_allclose(structured.train_loss, plain.train_loss, rtol=1e-12)


def test_a_residual_network_of_one_layer_has_no_branch():
    run = COMMON | ISOTROPIC | {"data_ratio": 2.0}
    deep, residual = (proportional(net, **run) for net in (wf.DNN(1, "linear"), wf.ResNet(1, "linear", 3.0)))
    np.testing.assert_array_equal(deep.test_loss, residual.test_loss)


def test_pairs_remove_what_is_odd_in_the_target():
    """Row 0 is then |w*|²/D + |f|², and |f|² falls with the square of the richness."""
    at = lambda richness, paired: proportional(  # noqa: E731
        wf.DNN(2, "linear"), **COMMON | ISOTROPIC | {"richness": richness, "label_noise": 0.0, "paired": paired}
    ).test_loss.values[:, 0]
    np.testing.assert_allclose(at(0.5, True) - 1, 4 * (at(1.0, True) - 1), rtol=1e-12)
    assert not np.allclose(at(0.5, False) - 1, 4 * (at(1.0, False) - 1), rtol=1e-2)


EXACT = {
    "deep": (wf.DNN(3, "linear"), 1 / 1.5),
    "widths": (wf.DNN(3, "linear", widths=(0.5, 2.0, 1.5)), 1 / (1.5 * 1.5)),
    "residual": (wf.ResNet(3, "linear", 0.5), 1.25**2 / 1.5),
}


@pytest.mark.parametrize("name", EXACT)
def test_mean_initial_loss(name):
    """1 + σ² + 1/(ν_L γ0²), times (1 + β²)^{L−1} with skip connections, at any dimension."""
    net, variance = EXACT[name]
    run = {"dimension": 24, "width_ratio": 1.5, "richness": 0.6, "rate": 0.01, "steps": 1, "label_noise": 0.2}
    trial = proportional(net, **run, replicates=1200, seed=1).test_loss.values[:, 0]
    assert agrees(1.2 + variance / 0.36, trial)
    assert not agrees(1.2 + 1.1 * variance / 0.36, trial)


def test_batches_are_fresh():
    """The loss on a fresh batch has the test loss as its mean, at every step; that on a training set has not."""
    net = wf.DNN(2, "linear")
    run = {"dimension": 20, "width_ratio": 1.0, "richness": 1.0, "rate": 0.05, "steps": 3, "label_noise": 0.5}
    difference = {}
    for ratio in ("batch_ratio", "data_ratio"):
        trial = proportional(net, **run, **{ratio: 1.0}, replicates=800, seed=2)
        difference[ratio] = (trial.train_loss - trial.test_loss).values
    assert agrees(0.0, difference["batch_ratio"])
    assert agrees(0.0, difference["data_ratio"][:, :1]) and not agrees(0.0, difference["data_ratio"][:, 1:2])


def test_gradient_correlations_start_at_their_exact_means():
    """<C_g^l(0,0)> = (1 + β²)^{L−l} with skip connections."""
    run = {"dimension": 24, "width_ratio": 1.5, "richness": 1.0, "rate": 0.01, "steps": 1, "replicates": 1000}
    trial = proportional(wf.ResNet(3, "linear", 0.5), **run, seed=3, quantities="gradient_correlation")
    first = trial.gradient_correlation.values[:, :, 0, 0]
    assert agrees([1.25**2, 1.25, 1.0], first)
    assert not agrees([1.25**2, 1.25, 1.1], first) and not agrees([1.1 * 1.25**2, 1.25, 1.0], first)


def test_update_is_made_in_place():
    model = Model(np.ones(3), 1.0, (2,), 1.0)
    learner = Learner(model, [np.zeros((2, 3))], np.zeros((2, 2)))
    before = learner.weights[0]
    g, h0 = np.arange(4.0).reshape(2, 2), np.arange(6.0).reshape(2, 3)
    learner.update(0.5, [g], [h0, np.ones((2, 2))])
    assert learner.weights[0] is before
    np.testing.assert_allclose(before, 0.5 * g.T @ h0, rtol=1e-15)
