"""What every theory promises, and what is particular to this one: divergence, sampling and honest errors, bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from tests import contracts
from tests.dynamics.question import predict
from widefield.theories.dynamics.march import step as march
from widefield.theories.dynamics.problem import Problem, problem

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 8)), RNG.normal(size=2)
TASK, SEQUENCE = wf.Task(X, Y), wf.Task(RNG.normal(size=(2, 2, 8)), RNG.normal(size=(2, 2, 1)))
NET, TANH = wf.DNN(2, "linear"), wf.DNN(2, "tanh")
PHYSICS = {"richness": 1.3, "rate": 0.1, "steps": 7, "progress": False}
NAMES = [
    "loss",
    "prediction",
    "state_prediction",
    "ntk",
    "alignment",
    "ntk_alignment",
    "feature_kernel",
    "gradient_kernel",
]
NAMES += ["preactivation", "pregradient"]


def ask(network=NET, task=TASK, **changes):
    return predict(network, task, **PHYSICS | changes)


def sampled(**changes):
    return ask(TANH, **{"paths": 256} | changes)


def test_certified():
    solution = ask()
    contracts.assert_certified(solution, "dynamics")
    contracts.assert_arrays_are_numpy(solution)
    np.testing.assert_allclose(solution.time, 0.1 * np.arange(8))
    assert solution.certificate.steps == 7 and solution.certificate.seed is None, "exact: nothing was drawn"


def test_certificate_of_what_was_sampled():
    solution = sampled()
    assert solution.status is wf.Status.success and solution.certificate.seed == 0
    assert 0 <= solution.residual < 1e-10 and 0 < solution.certificate.error < 0.1
    for name in ("loss", "prediction", "ntk", "feature_kernel", "gradient_kernel"):
        assert solution.data[f"{name}_stderr"].dims == solution.data[name].dims
    assert solution.preactivation.shape == (2, 8 * 256, 2)
    again, other = sampled(quantities="prediction"), sampled(quantities="prediction", seed=1)
    np.testing.assert_array_equal(again.prediction, solution.prediction)
    assert not np.array_equal(other.prediction, solution.prediction)


def test_rejects_tracers():
    for argument, value in (("richness", 0.8), ("rate", 0.05), ("weight_decay", 0.1), ("initial_scale", 1.0)):
        with pytest.raises(ValueError, match=f"`{argument}` is a JAX tracer"):
            jax.jit(lambda v, name=argument: ask(**{name: v}).loss.values)(value)


def test_save_and_load(tmp_path):
    for name, options in (("a", {}), ("b", {"rate": np.full(7, 0.1)}), ("c", {"rate": lambda t: 0.1, "at": [0, -1]})):
        solution = ask(**options)
        again = wf.load(solution.save(tmp_path / f"{name}.nc"))
        assert again.data.identical(solution.data) and again.network == solution.network
        assert again.certificate == solution.certificate


def test_chosen_steps_are_those_of_all_steps():
    everything, some = ask(), ask(at=[2, -1])
    assert some.feature_kernel.dims == ("layer", "at", "at_", "sample", "sample_") and list(some.data["at"]) == [2, 7]
    for name in ("feature_kernel", "gradient_kernel"):
        every = everything.data[name].values[:, [2, 7]][:, :, [2, 7]]
        np.testing.assert_array_equal(some.data[name], every)


def test_rates_of_every_kind_are_one_rate():
    usual = ask(quantities="loss").loss
    for rate in (np.full(7, 0.1), [0.1] * 7, lambda t: 0.1):
        np.testing.assert_array_equal(ask(rate=rate, quantities="loss").loss, usual)
    custom = ask(loss=lambda f, y: 0.5 * jnp.sum((f - y) ** 2), quantities="loss")
    np.testing.assert_allclose(custom.loss, usual, rtol=1e-13)


@pytest.mark.parametrize("call", [ask, sampled])
def test_divergence_is_a_status_with_its_step(call):
    partial = contracts.assert_fails_loudly(lambda throw: call(rate=40.0, throw=throw), wf.Status.diverged)
    step = partial.certificate.diagnostics["diverged_at_step"]
    assert 0 < step <= 7 and np.isinf(partial.loss[step:]).all() and np.isfinite(partial.loss[:step]).all()
    assert dataclasses.replace(partial.certificate, failure=None).status is wf.Status.diverged, "from its checks alone"
    assert not any(np.isnan(field).any() for field in partial.data.values())
    assert f"step {step}" in " ".join(partial.certificate.notes)
    early = call(rate=40.0, steps=max(step - 1, 1), throw=False)
    np.testing.assert_allclose(early.loss[:step], partial.loss[:step], rtol=1e-10)


def test_zero_labels_do_not_diverge():
    """The first loss is a rounding; what decay makes of the initial weights is larger and no divergence."""
    solution = sampled(task=wf.Task(X, 0 * Y), weight_decay=0.1)
    assert np.all(np.abs(solution.prediction) < 0.1)


@pytest.mark.full
def test_more_paths_until_the_tolerance_is_met():
    plain = ask(TANH, quantities="prediction")
    better = ask(TANH, quantities="prediction", rtol=0.7 * plain.certificate.error)
    assert better.certificate.error <= 0.7 * plain.certificate.error
    assert better.certificate.options["paths"] > plain.certificate.options["paths"]


def test_reported_errors_are_honest_where_sampling_is_exact(monkeypatch):
    """Linear networks forced to sample: pairs of paths leave no scatter, and the error is of what was not opened."""
    exact = ask()
    monkeypatch.setattr(Problem, "exact", property(lambda self: False))
    for seed in range(2):
        solution = ask(paths=256, seed=seed)
        for name in ("prediction", "ntk", "feature_kernel", "gradient_kernel"):
            gap, error = np.abs(solution.data[name] - exact.data[name]), solution.data[f"{name}_stderr"]
            assert np.all(gap <= error + 1e-12) and gap.max() > 1e-7, name
            assert error.max() < 1e-3 * np.abs(exact.data[name]).max(), name


@pytest.mark.parametrize("tied", [True, False])
def test_a_layer_more_compiles_nothing_more(tied):
    """A step with its tangent kernel is as long a program at any depth."""

    def lines(depth):
        network = wf.DNN(depth, "tanh", weights="tied" if tied else "untied")
        asked = problem(network, TASK, wf.Training(0.1, 2))
        shape, white = asked.shape, jnp.zeros((1 if tied else depth - 1, 32, 64))

        def step(physics, noises):
            state, record = march.step(shape, physics, march.start(shape, physics, noises), 0.1)
            return state, march.tangent_kernel(shape, physics, record.feature, record.gradient, 1 / 64)

        noises = (white[0, : asked.physics.inputs.shape[-1]], white[0, :1], (white, white))
        return jax.jit(step).lower(asked.physics, noises).as_text().count("\n")

    with jax.enable_x64(True):
        assert lines(4) == lines(9)


BAD = [
    ({"richness": 0.0}, "`richness` must be a finite positive number, got 0: .* `method=\"lazy\"`"),
    ({"richness": -1.0}, "`richness` must be a finite non-negative number"),
    ({"steps": 0}, "`steps` must be an integer of at least 1"),
    ({"steps": 2.5}, "`steps` must be an integer of at least 1"),
    ({"rate": [0.1, 0.2]}, "`rate` must be a number, 7 of them"),
    ({"rate": "fast"}, "`rate` must be a number, 7 of them"),
    ({"rate": lambda t: -1.0}, "`rate` must be positive and finite"),
    ({"rate": lambda: 0.1}, "`rate` must be a function of the step"),
    ({"rate": 0.0}, "`rate` must be positive and finite"),
    ({"weight_decay": -0.1}, "`weight_decay` must be a finite non-negative number"),
    ({"momentum_time": 0.0}, "`momentum_time` must be a finite positive number"),
    ({"momentum_time": 0.05}, "`momentum_time` must be at least the rate"),
    ({"temperature": -1.0}, "`temperature` must be a finite non-negative number"),
    ({"temperature": 0.1, "flow": True}, "`flow` extrapolates smooth curves"),
    ({"initial_scale": 0.0}, "`initial_scale` must be a finite positive number"),
    ({"loss": "hinge"}, "`loss` must be one of 'squared'"),
    ({"loss": lambda f, y: f}, "`loss` must be a differentiable JAX function of one sample's outputs and label"),
    ({"loss": lambda f: 0.0}, "`loss` must be a differentiable JAX function of one sample's outputs and label"),
    ({"flow": "yes"}, "`flow` must be True or False"),
    ({"throw": 0}, "`throw` must be True or False"),
    ({"progress": "bar"}, "`progress` must be True or False"),
    ({"task": wf.Task(X, np.sign(Y), x_test=X, y_test=[0.0, 1.0]), "loss": "logistic"}, "`y_test` must hold labels -1 and 1"),
    ({"loss": "logistic"}, "`y` must hold labels -1 and 1"),
    ({"loss": "cross_entropy"}, "`y` must hold class probabilities"),
    ({"method": "exact"}, "`method` must be one of 'full'"),
    ({"method": "lazy", "weight_decay": 0.1}, "`method`='lazy' is for plain descent"),
    ({"method": "perturbative", "temperature": 0.1}, "`method`='perturbative' is for plain descent"),
    ({"method": "perturbative", "momentum_time": 1.0}, "`method`='perturbative' is for descent without momentum_time"),
    ({"paths": 8}, "`paths` must be an integer of at least 64"),
    ({"seed": -1}, "`seed` must be an integer of at least 0"),
    ({"at": [9]}, "`at` must be steps between 0 and 7"),
    ({"at": []}, "`at` must be steps between 0 and 7"),
    ({"at": 0.5}, "`at` must be steps between 0 and 7"),
    ({"quantities": "weights"}, "`quantities` must be one of"),
    *(({"quantities": value}, "`quantities` must") for value in (5, True, [], [5], [["loss"]], b"loss")),
    *(({"paths": value}, "`paths` must be an integer") for value in ("abc", True, 64.5, [64])),
    *(({"at": value}, "`at` must be") for value in ("abc", True, [True], [[0]], [[0], [1, 2]], range(99))),
    *(({"rtol": value}, "`rtol` must") for value in ("1e-3", True, 0, -1, float("nan"), 1.0, [0.1])),
    *(({"seed": value}, "`seed` must be an integer") for value in (None, True, "a", 1.5)),
    *(({"method": value}, "`method` must be one of") for value in (None, 5, ["full"], True)),
    *(({"progress": value}, "`progress` must be True or False") for value in ("yes", 1)),
    *(({"throw": value}, "`throw` must be True or False") for value in ("no", 1, None)),
    ({"method": "lazy", "quantities": "forward_response"}, "`quantities` must be one of"),
    ({"flow": True, "quantities": "preactivation"}, "`quantities` must be one of"),
    ({"method": "perturbative", "flow": True}, "without momentum_time or flow"),
    ({"batches": np.ones((7, 2))}, "`batches` of the training is not covered by dynamics"),
    ({"task": wf.Task(X)}, "`task` must have labels `y`"),
    ({"task": X}, "`task` must be a widefield.Task"),
    ({"task": wf.Task(RNG.normal(size=(2, 3, 8)), Y)}, "`x` drives 3 states, but the network has depth 2"),
    ({"network": "DNN"}, "`network` must be a widefield.Network"),
    ({"network": wf.ResNet(2, "tanh", 0.5)}, "without skip connections in dynamics"),
    ({"network": wf.DNN(2, "linear", readout_variance=None)}, "`network` must have a readout"),
    ({"network": wf.DNN(2, "linear", bias_variance=0.1)}, "readout_bias_variance=0 in dynamics"),
    ({"network": wf.DNN(2, "linear", widths=(0.5, 1.0)), "method": "lazy"}, "needs equal `widths`"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        ask(**changes)


@pytest.mark.full
def test_dims_follow_the_question():
    assert ask().feature_kernel.dims == ("layer", "step", "step_", "sample", "sample_")
    several = ask(wf.RNN(2, "linear"), SEQUENCE)
    assert several.prediction.dims == ("step", "state", "sample", "output")
    assert several.ntk.dims == ("readout", "readout_", "step", "sample", "sample_")
    assert several.gradient_kernel.dims[:4] == ("readout", "readout_", "state", "state_")
