"""Parameterisations on real networks: one function, trained alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf

N, D, P = 6, 5, 3


def train(layers, x, y, seed=0, steps=4):
    """Outputs of a three-layer tanh network with biases, each parameter with its own multiplier, scale and rate."""
    rng = np.random.default_rng(seed)
    shapes = {"inputs": (N, D), "hidden": (N, N), "readout": (1, N), "biases": (2, N)}
    rules = {name: getattr(layers, name) for name in shapes}
    theta = {name: jnp.asarray(rules[name].initial_scale * rng.normal(size=s)) for name, s in shapes.items()}

    def output(theta):
        W = {name: rules[name].multiplier * value for name, value in theta.items()}
        first = jnp.tanh(x @ W["inputs"].T + W["biases"][0])
        return (jnp.tanh(first @ W["hidden"].T + W["biases"][1]) @ W["readout"].T)[:, 0]

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
    options = {"width": N, "dimension": D, "richness": 0.8, "rate": 0.1}
    with jax.enable_x64(True):
        runs = {f: train(wf.parameterization(network, form=f, **options), x, y) for f in ("mean_field", "mup", "ntk")}
    assert np.abs(np.diff(runs["mean_field"], axis=0)).min() > 1e-4
    for form in ("mup", "ntk"):
        np.testing.assert_allclose(runs[form], runs["mean_field"], rtol=1e-12, atol=1e-13)


def test_mup_scales_as_its_name_says():
    """Hidden rates do not know the width, readout rates fall with it, input rates grow."""
    ask = lambda n: wf.parameterization(wf.DNN(2), width=n, dimension=D, richness=1.0, rate=0.1, form="mup")  # noqa: E731
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
    richness, rate = wf.proportional_parameters(richness=gamma, rate=eta, samples=P, dimension=D)
    with jax.enable_x64(True):
        theta = [jnp.asarray(rng.normal(size=s)) for s in ((N, D), (N,))]
        dyn = lambda t: t[1] @ t[0] @ x.T / np.sqrt(D) / (gamma * N)  # noqa: E731
        prop = lambda t: np.sqrt(D) / (N * richness) * t[1] @ t[0] @ x.T / np.sqrt(D)  # noqa: E731
        moved = []
        for f, loss, raw in ((dyn, 0.5, eta * gamma**2 * N), (prop, 0.5 / P, N * richness**2 * rate)):
            slope = jax.grad(lambda t, f=f, loss=loss: loss * jnp.sum((y - f(t)) ** 2))(theta)
            moved.append(f([a - raw * g for a, g in zip(theta, slope, strict=True)]))
    np.testing.assert_allclose(*moved, rtol=1e-12)


def test_bad_input():
    with pytest.raises(ValueError, match="`form` must be one of"):
        wf.parameterization(wf.DNN(2), width=3, dimension=2, richness=1.0, rate=0.1, form="sp")
    with pytest.raises(ValueError, match="one weight_variance for all states"):
        wf.parameterization(wf.DNN(3, weight_variance=(1.0, 2.0)), width=3, dimension=2, richness=1.0, rate=0.1)
