"""One question in other conventions: on real networks, by one step of either theory, and by the law of Langevin training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield import convert

N, D, P = 6, 5, 3


def train(layers, x, y, seed=0, steps=4):
    """Outputs of a three-layer tanh network with biases, each parameter with its own multiplier, scale and rate."""
    rng = np.random.default_rng(seed)
    shapes = {"inputs": (N, D), "hidden": (N, N), "readout": (1, N), "biases": (2, N)}
    rules = {name: getattr(layers, name) for name in shapes}
    theta = {name: jnp.asarray(rules[name].initial_scale * rng.normal(size=s)) for name, s in shapes.items()}

    def output(theta):
        W = {name: rules[name].multiplier * value for name, value in theta.items()}
        first = jnp.tanh(x @ W["inputs"].T + W["biases"][0, None])
        return (jnp.tanh(first @ W["hidden"].T + W["biases"][1, None]) @ W["readout"].T)[:, 0]

    gradient = jax.jit(jax.grad(lambda theta: 0.5 * jnp.sum((output(theta) - y) ** 2)))
    rows = []
    for _ in range(steps):
        rows.append(output(theta))
        moves = gradient(theta)
        theta = {name: theta[name] - rules[name].rate * moves[name] for name in theta}
    return np.asarray(rows)


def test_every_form_trains_the_same_function():
    network = wf.DNN(2, "tanh", weight_variance=1.3, input_variance=0.7, readout_variance=2.0, bias_variance=0.4)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(P, D)), rng.normal(size=P)
    training, sizes = wf.Training(0.1, 4, richness=0.8), {"width": N, "dimension": D}
    forms = {form: convert.parameterization(network, training, form=form, **sizes) for form in convert.FORMS}
    with jax.enable_x64(True):
        runs = {form: train(layers, x, y) for form, layers in forms.items()}
    assert all(layers.status is wf.Status.success and layers.certificate.residual < 1e-14 for layers in forms.values())
    assert np.abs(np.diff(runs["mean_field"], axis=0)).min() > 1e-4
    for form in ("mup", "ntk"):
        np.testing.assert_allclose(runs[form], runs["mean_field"], rtol=1e-12, atol=1e-13)


def test_mup_scales_as_its_name_says():
    """Hidden rates do not know the width, readout rates fall with it, input rates grow."""
    ask = lambda n: convert.parameterization(wf.DNN(2), wf.Training(0.1, 1), width=n, dimension=D, form="mup")  # noqa: E731
    small, large = ask(100), ask(400)
    assert large.hidden.rate == pytest.approx(small.hidden.rate)
    assert large.readout.rate == pytest.approx(small.readout.rate / 4)
    assert large.inputs.rate == pytest.approx(4 * small.inputs.rate)
    assert large.hidden.initial_scale == pytest.approx(small.hidden.initial_scale / 2)
    assert "hidden" in str(large)


def test_one_step_in_the_proportional_form():
    """The same weights, moved once by either theory's rule."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(P, D)), rng.normal(size=P)
    gamma, eta = 0.3, 0.05
    conversion = convert.proportional(wf.Training(eta, 1, richness=gamma), samples=P, dimension=D)
    richness, rate = conversion.training.richness, conversion.training.rate
    assert conversion.status is wf.Status.success
    with jax.enable_x64(True):
        theta = [jnp.asarray(rng.normal(size=s)) for s in ((N, D), (N,))]
        dyn = lambda t: t[1] @ t[0] @ x.T / np.sqrt(D) / (gamma * N)  # noqa: E731
        prop = lambda t: np.sqrt(D) / (N * richness) * t[1] @ t[0] @ x.T / np.sqrt(D)  # noqa: E731
        moved = []
        for f, loss, raw in ((dyn, 0.5, eta * gamma**2 * N), (prop, 0.5 / P, N * richness**2 * rate)):
            slope = jax.grad(lambda t, f=f, loss=loss: loss * jnp.sum((y - f(t)) ** 2))(theta)
            moved.append(f([a - raw * g for a, g in zip(theta, slope, strict=True)]))
    np.testing.assert_allclose(*moved, rtol=1e-12)


def test_schedules_and_flows_stay_what_they_are():
    training = wf.Training([0.1, 0.2], 2, richness=0.5, flow=True, centered=True)
    changed = convert.proportional(training, samples=4, dimension=2).training
    np.testing.assert_allclose(changed.rates, [0.2, 0.4])
    assert changed.flow and changed.centered and changed.steps == 2


LANGEVIN = wf.Training(0.01, 1, richness=2.0, temperature=0.2, weight_decay=0.1)


def test_bayesian_networks_have_the_variances_of_the_gibbs_law():
    """β = 5 and a ridge λ/T = 0.5 in the paper's letters: u = w = 2, v = 2/γ0², κ = 1/(γ0²β)."""
    conversion = convert.bayes(wf.RNN(3, "erf", weight_variance=1.5), LANGEVIN)
    network = conversion.network
    assert network.input_variance == pytest.approx(2.0) and network.weight_variance == pytest.approx(3.0)
    assert network.readout_variance == pytest.approx(0.5) and conversion.temperature == pytest.approx(0.05)
    assert conversion.status is wf.Status.success and "temperature 0.05" in str(conversion)


def test_the_gibbs_law_is_that_of_one_linear_neuron():
    """Two weights and one sample: moments of the output under exp(−(λ|θ|²/2 + γ0²N·loss)/T), by quadrature, in both forms."""
    gamma, T, decay, x, y = 2.0, 0.2, 0.1, 0.7, 0.4
    conversion = convert.bayes(wf.DNN(1, "linear"), LANGEVIN)
    axis = np.linspace(-9, 9, 801)
    w, v = np.meshgrid(axis, axis)

    def mean_output(first, last, scale, loss):
        f = scale * v * w * x
        p = np.exp(-(w**2) / (2 * first) - v**2 / (2 * last) - loss * (f - y) ** 2 / 2)
        return np.sum(p * f) / np.sum(p)

    langevin = mean_output(T / decay, T / decay, 1 / gamma, gamma**2 / T)
    u, variance = conversion.network.input_variances[0], conversion.network.readout_variance
    bayesian = mean_output(u, variance, 1.0, 1 / conversion.temperature)
    np.testing.assert_allclose(bayesian, langevin, rtol=1e-6)
    assert abs(bayesian) > 1e-2


def test_the_dictionary_gives_the_equations_of_the_appendix():
    """(117) with 1/λ and its readout term γ0²β²/λ for λ ≠ 1; as printed, without it or with half of it, both are off."""
    gamma, beta, ridge, rng = 1.5, 5.0, 0.6, np.random.default_rng(3)
    training = wf.Training(0.01, 1, richness=gamma, temperature=1 / beta, weight_decay=ridge / beta)
    bayes = convert.bayes(wf.DNN(3, "linear"), training)
    task = wf.Task(rng.normal(size=(2, 3)), 5 * rng.normal(size=2))
    found = wf.posterior(bayes.network, task, temperature=bayes.temperature)
    block = lambda name, a: found.data[name].values[a, a]  # noqa: E731
    error = task.y.ravel() - found.prediction.values[-1, :, 0]
    readout = -(gamma**2) * beta**2 / ridge * np.outer(error, error)
    np.testing.assert_allclose(-2 * block("conjugate", 2), readout, atol=1e-8 * np.abs(readout).max())
    assert np.abs(readout @ block("feature", 2)).max() > 0.1, "labels that matter"
    for a in (0, 1):
        inverse = np.linalg.inv(block("feature", a))
        back = inverse @ block("hidden", a + 1) @ inverse
        np.testing.assert_allclose(
            -2 * block("conjugate", a), inverse - ridge * back, atol=1e-8 * np.abs(inverse).max()
        )
        assert np.abs(inverse - back + 2 * block("conjugate", a)).max() > 0.01 * np.abs(inverse).max()


def test_bad_input():
    sizes, plain = {"width": 3, "dimension": 2}, wf.Training(0.1, 2)
    for call, message in (
        (lambda: convert.parameterization(wf.DNN(2), plain, form="sp", **sizes), "`form` must be one of"),
        (lambda: convert.parameterization(wf.DNN(3, weight_variance=(1.0, 2.0)), plain, **sizes), "one weight_variance for all states"),
        (lambda: convert.parameterization(None, plain, **sizes), "`network` must be a widefield.Network"),
        (lambda: convert.parameterization(wf.DNN(2), wf.Training([0.1, 0.2], 2), **sizes), "`rate` of the training must be constant"),
        (lambda: convert.parameterization(wf.DNN(2), LANGEVIN, **sizes), "`weight_decay` of the training is not covered"),
        (lambda: convert.proportional(LANGEVIN, samples=2, dimension=2), "`weight_decay` of the training is not covered"),
        (lambda: convert.bayes(wf.DNN(2), plain), "`weight_decay` must be a finite positive number"),
        (lambda: convert.bayes(wf.DNN(2, bias_variance=0.1), LANGEVIN), "without a bias"),
        (lambda: convert.equilibrium(wf.DNN(2), wf.Training(3.0, 1, weight_decay=1.0, temperature=0.1)), "must be below 2"),
        (lambda: convert.bayes(wf.DNN(2), {"rate": 0.1}), "`training` must be a widefield.Training"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()


LAW = {"rate": 0.01, "steps": 1, "richness": 2.0, "temperature": 0.2, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("call", "name", "bad"),
    [
        *[(convert.bayes, name, bad) for name in ("richness", "temperature", "weight_decay") for bad in (5e-324, 1e-200, 1e200, 0.0)],
        *[(convert.equilibrium, name, bad) for name in ("rate", "temperature", "weight_decay") for bad in (5e-324, 1e-200, 1e200)],
    ],
)  # fmt: skip
def test_numbers_without_squares_are_refused_by_name(call, name, bad):
    with pytest.raises(ValueError, match=f"`{name}`"):
        call(wf.DNN(2), wf.Training(**LAW | {name: bad}))


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, None, "x", 10**30, np.nan, [2], np.ones(2)])
def test_counts_are_refused_by_name(bad):
    plain = wf.Training(0.1, 2)
    for name in ("samples", "dimension"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            convert.proportional(plain, **{"samples": 2, "dimension": 2} | {name: bad})
    for name in ("width", "dimension"):
        with pytest.raises(ValueError, match=f"`{name}`"):
            convert.parameterization(wf.DNN(2), plain, **{"width": 2, "dimension": 2} | {name: bad})


@pytest.mark.parametrize("name", ["rate", "richness"])
@pytest.mark.parametrize("bad", [1e-300, 1e-200, 1e200])
def test_trainings_without_squares_are_refused_by_name(name, bad):
    training = wf.Training(**{"rate": 0.1, "steps": 2} | {name: bad})
    with pytest.raises(ValueError, match=f"`{name}`"):
        convert.proportional(training, samples=2, dimension=2)
    with pytest.raises(ValueError, match=f"`{name}`"):
        convert.parameterization(wf.DNN(2), training, width=2, dimension=2)


def test_the_stationary_variance_is_that_of_one_weight():
    """θ ← (1 − ηλ)θ + √(2ηT) ξ, iterated; at tiny rates T/λ, with every digit."""
    variance, eta, decay, T = 0.0, 0.3, 0.5, 0.2
    for _ in range(400):
        variance = (1 - eta * decay) ** 2 * variance + 2 * eta * T
    law = wf.Training(eta, 1, weight_decay=decay, temperature=T)
    assert convert.equilibrium(wf.DNN(2), law).network.weight_variance == pytest.approx(variance, rel=1e-13)
    slow = wf.Training(1e-17, 1, weight_decay=decay, temperature=T)
    assert convert.equilibrium(wf.DNN(2), slow).network.weight_variance == pytest.approx(T / decay, rel=1e-15)
