"""What every theory promises, and what is particular to this one: divergence, bad input, sweeps and transfer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from tests import contracts
from widefield.theories.proportional import sweep
from widefield.theories.proportional.inputs import Source
from widefield.theories.proportional.march import Parameters, Shape, buffer_sizes, march, segments

NET = wf.DNN(2, "linear")
PHYSICS = {"rate": 0.05, "steps": 8, "richness": 0.8, "width_ratio": 0.7, "data_ratio": 1.5, "label_noise": 0.2}
SHAPE = Shape(n_steps=5, depth=2)


def core(rate, richness, inverse_width, label_noise, inverse_data):
    """Losses as a function of the physical parameters."""
    source = Source(label_noise, jnp.eye(1), inverse_data, jnp.zeros(()))
    parameters = Parameters(rate, richness, 1 / richness, inverse_width, jnp.ones(2), source, jnp.ones(()))
    return march(parameters, SHAPE).inputs.losses


def residual_core(rate, richness, branch):
    source = Source(jnp.zeros(()), jnp.eye(1), jnp.zeros(()), jnp.ones(()))
    parameters = Parameters(rate, richness, 1 / richness, jnp.ones(()), jnp.ones(3), source, branch)
    return march(parameters, Shape(n_steps=4, depth=3, reused=False, residual=True)).inputs.losses


@pytest.fixture
def arguments():
    with jax.enable_x64(True):
        yield tuple(map(jnp.asarray, (np.full(5, 0.05), 0.8, 1.4, 0.2, 0.7)))


def ask(**changes):
    return wf.proportional(NET, **PHYSICS | changes)


def test_jit_is_plain(arguments):
    contracts.assert_jit_is_plain(core, *arguments)


def test_vmap_is_loop(arguments):
    contracts.assert_vmap_is_loop(core, *(jnp.stack([a, 1.1 * a]) for a in arguments))


def test_gradient_is_difference(arguments):
    contracts.assert_gradient_is_difference(core, *arguments, step=1e-3)


@pytest.mark.full
def test_gradient_of_residual_networks_is_difference():
    with jax.enable_x64(True):
        contracts.assert_gradient_is_difference(
            residual_core, *map(jnp.asarray, (np.full(4, 0.05), 0.8, 0.6)), step=1e-3
        )


def test_certified():
    solution = ask()
    contracts.assert_certified(solution, "proportional")
    contracts.assert_arrays_are_numpy(solution)
    np.testing.assert_allclose(solution.time, 0.05 * np.arange(9))


def test_x64_flag_has_no_say():
    contracts.assert_x64_flag_has_no_say(ask)


def test_rejects_tracers():
    for argument, value in (("richness", 0.8), ("rate", 0.05), ("label_noise", 0.1)):
        with pytest.raises(ValueError, match=f"`{argument}` is a JAX tracer"):
            jax.jit(lambda v, name=argument: ask(**{name: v}).test_loss.values)(value)


def test_quantities():
    names = [
        "test_loss", "train_loss", "bias", "width_variance", "data_variance", "kernel", "error_correlation",
        "memory_kernel", "feature_correlation", "gradient_correlation", "feature_response", "gradient_response",
    ]  # fmt: skip
    contracts.assert_selects(lambda quantities: ask(quantities=quantities), names)


def test_memory_is_refused(monkeypatch):
    from widefield.theories.proportional import run

    monkeypatch.setattr(run, "memory_budget", lambda: 10**9)
    with pytest.raises(MemoryError, match="The march needs about .* for 20002 × 20002 matrices at depth 2"):
        ask(steps=20000)


def test_save_and_load(tmp_path):
    solution = wf.proportional(wf.ResNet(3, "linear", 0.6), **PHYSICS)
    again = wf.load(solution.save(tmp_path / "p.nc"))
    assert again.data.identical(solution.data) and again.network == solution.network
    assert again.certificate == solution.certificate


def test_single_precision():
    single, double = ask(dtype="float32"), ask()
    contracts.assert_arrays_are_numpy(single, "float32")
    assert single.certificate.dtype == "float32" and single.residual > 1e-9
    np.testing.assert_allclose(single.test_loss, double.test_loss, rtol=1e-4)


def test_divergence_is_a_status_with_its_step():
    partial = contracts.assert_fails_loudly(lambda throw: ask(rate=5.0, throw=throw), wf.Status.diverged)
    step = partial.certificate.diagnostics["diverged_at_step"]
    assert 0 < step < 8 and np.isinf(partial.test_loss[step:]).all() and np.isfinite(partial.test_loss[:step]).all()
    assert not any(np.isnan(field).any() for field in partial.data.values())
    # the steps before are those of a run that stops in time
    early = ask(rate=5.0, steps=step - 1 or 1, throw=False)
    np.testing.assert_allclose(early.test_loss[:step], partial.test_loss[:step], rtol=1e-10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width_ratio": 0.0}, "`width_ratio` must be a finite positive number"),
        ({"width_ratio": -1.0}, "`width_ratio` must be a finite positive number"),
        ({"batch_ratio": 1.0}, "`data_ratio` .* or `batch_ratio` .*, not both"),
        ({"richness": 0.0}, "`richness` must be positive unless the network is centered"),
        ({"rate": [0.1, 0.2]}, "`rate` must be a number, 8 of them"),
        ({"rate": -0.1}, "`rate` must be positive and finite"),
        ({"label_noise": -0.1}, "`label_noise` must be a finite non-negative number"),
        ({"steps": 0}, "`steps` must be an integer of at least 1"),
        ({"width": 100}, "`width` goes with `spectrum`; isotropic data take `width_ratio`"),
        ({"spectrum": ([1.0], [1.0])}, "`data_ratio`: full-batch descent on structured data is not covered"),
        ({"data_ratio": None, "spectrum": ([1.0], [1.0])}, "`spectrum` goes with `width=` and `batch=`"),
        ({"target_overlap": [[1.0, 2.0], [2.0, 1.0]]}, "`target_overlap` must be a symmetric matrix without negative"),
        ({"depth_limit": True}, "`depth_limit` needs a ResNet"),
        ({"dtype": "float16"}, "`dtype` must be one of"),
        ({"quantities": "weights"}, "`quantities` must be one of"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        ask(**changes)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (wf.DNN(2, "relu"), "activation 'linear': proportional covers linear networks, got relu"),
        (wf.RNN(2, "linear"), "proportional covers DNN and ResNet, got an RNN"),
        (wf.DNN(2, "linear", weight_variance=2.0), "variances 1 in proportional"),
        (wf.DNN(2, "linear", bias_variance=0.1), "no biases"),
        (wf.DNN(2, "linear", readout_variance=None), "variances 1 in proportional"),
        ("DNN", "`network` must be a widefield.Network"),
    ],
)
def test_networks_that_are_not_covered(network, message):
    with pytest.raises(ValueError, match=message):
        wf.proportional(network, **PHYSICS)


def test_growing_buffers_change_nothing(monkeypatch):
    from widefield.theories.proportional import march as module

    whole = ask()
    monkeypatch.setattr(module, "SMALLEST", 5)
    assert buffer_sizes(10) == (5, 10) and buffer_sizes(30) == (5, 10, 20, 30)
    parts = ask()
    assert parts.residual < 1e-13
    for name in parts.data:
        np.testing.assert_allclose(parts.data[name], whole.data[name], rtol=1e-12, atol=1e-14)
    assert [size for size, _ in segments(_parameters(), SHAPE._replace(n_steps=10))] == [5, 10]


def _parameters():
    source = Source(jnp.zeros(()), jnp.eye(1), jnp.ones(()), jnp.zeros(()))
    one = jnp.ones(())
    return Parameters(jnp.full(10, 0.05), one, one, one, jnp.ones(2), source, one)


@pytest.mark.parametrize("name", ["error", "propagator", "test", "feature", "memory"])
def test_the_residual_sees_a_wrong_matrix(name):
    """One entry of one matrix, changed by 1e-6."""
    from widefield.theories.proportional.problem import problem
    from widefield.theories.proportional.verify import residual

    keys = {"batch_ratio", "centered", "spectrum", "width", "batch", "target_overlap"}
    with jax.enable_x64(True):
        asked = problem(NET, **PHYSICS | dict.fromkeys(keys))
        state = march(asked.parameters, asked.shape)
        assert residual(asked, state, asked.n_rows) < 1e-13
        matrix = getattr(state.inputs, name)
        at = (4, 0, 2) if matrix.ndim == 3 else (4, 2)
        wrong = state._replace(inputs=state.inputs._replace(**{name: matrix.at[at].add(1e-6)}))
        assert residual(asked, wrong, asked.n_rows) > 1e-8


def test_a_depth_that_equals_the_buffer_is_no_time():
    """Six steps have buffers of eight rows: as many as there are layers."""
    found = wf.proportional(wf.ResNet(8, "linear", 0.3), rate=0.02, steps=6, width_ratio=1.0)
    assert found.residual < 1e-13


@pytest.mark.parametrize("n_modes", [10, 20])
def test_as_many_modes_as_rows_are_no_time(n_modes):
    """Eight steps have buffers of ten rows."""
    k = np.arange(1.0, n_modes + 1)
    found = wf.proportional(NET, rate=0.05, steps=8, spectrum=(k**-1.5, k**-2.0), width=20, batch=20)
    assert found.residual < 1e-13
    quiet = wf.proportional(NET, rate=0.05, steps=8, spectrum=(k**-1.5, k**-2.0))
    assert quiet.residual < 1e-13 and np.all(quiet.test_loss[1:] < found.test_loss[1:])


def test_a_sweep_is_its_runs():
    swept = wf.rate_sweep(NET, rates=[0.02, 0.05, 9.0], width_ratios=[0.5, 2.0], steps=8, data_ratio=1.5)
    assert swept.test_loss.dims == ("width_ratio", "rate", "step")
    one = wf.proportional(NET, rate=0.05, steps=8, data_ratio=1.5, width_ratio=2.0)
    np.testing.assert_allclose(swept.test_loss.sel(width_ratio=2.0, rate=0.05), one.test_loss, rtol=1e-12)
    assert np.isinf(swept.test_loss.sel(rate=9.0).values[:, -1]).all()


def test_a_search_compiles_once():
    sweep.losses.clear_cache()
    found = wf.transfer(NET, over="width", values=[0.5, 2.0], steps=8, data_ratio=1.5)
    assert sweep.losses._cache_size() == 1
    assert found.optimal_rate.dims == ("width_ratio", "step")


def test_the_optimal_rate_is_the_best_and_the_maximal_one_the_edge():
    found = wf.optimal_rate(NET, steps=8, richness=2.0, width_ratio=1.0)
    best, edge = found.optimal_rate.values[-1], float(found.maximal_rate)

    def loss(rate):
        return wf.proportional(NET, rate=rate, steps=8, richness=2.0, width_ratio=1.0, throw=False).test_loss.values

    assert loss(best)[-1] <= min(loss(0.97 * best)[-1], loss(1.03 * best)[-1])
    above = edge + 2 * float(found.maximal_rate_error)
    assert loss(edge)[-1] < loss(edge)[0] and not loss(above)[-1] < loss(above)[0]


def test_lazy_regression_has_the_textbook_optimum():
    """One step on the population, lazy: the error is (1 − 2η)², zero at ½, below its start up to 1."""
    found = wf.optimal_rate(wf.DNN(1, "linear"), steps=1, richness=0.0, centered=True)
    np.testing.assert_allclose(found.optimal_rate.values[-1], 0.5, rtol=1e-3)
    np.testing.assert_allclose(found.maximal_rate, 1.0, rtol=1e-3)


def test_transfer_in_the_rich_regime():
    """Eq. 70: the largest stable rate grows as ν^{1−1/L} in NTK parameterisation, and is flat in μP."""
    ask = lambda kind: wf.transfer(  # noqa: E731
        wf.DNN(3, "linear"), over="width", values=[1.0, 4.0], steps=20, richness=4.0, parameterization=kind
    )
    slopes = {
        kind: np.log(ask(kind).maximal_rate.values[1] / ask(kind).maximal_rate.values[0]) / np.log(4)
        for kind in ("ntk", "mup")
    }
    assert abs(slopes["ntk"] - 2 / 3) < 0.06 and abs(slopes["mup"]) < 0.15


@pytest.mark.full
def test_transfer_over_depth():
    """Constant branches: the optimum collapses. Scaled as 1/√L it settles."""
    ask = lambda scaled: wf.transfer(  # noqa: E731
        wf.ResNet(1, "linear", 1.25 if scaled else 1.0), over="depth", values=[2, 4, 8, 16], steps=12, width_ratio=1.0,
        scaled_branch=scaled,
    ).optimal_rate.values[:, -1]  # fmt: skip
    constant, scaled = ask(False), ask(True)
    assert constant[0] / constant[-1] > 1e4
    assert scaled[-2] / scaled[-1] < 1.5 and np.all(np.diff(np.log(scaled)) > np.log(0.4))


@pytest.mark.full
def test_power_law_exponents():
    """Lazy: the source exponent. Rich: above the printed exponent, which does not know the depth."""
    lazy = wf.loss_exponent(wf.DNN(1, "linear"), source=0.8, capacity=1.5, rate=0.3, steps=120, richness=0.0)
    assert abs(lazy.exponent.values[-1] - 0.8) < 0.02
    assert float(lazy.depth_exponent) == float(lazy.printed_exponent)  # one hidden layer
    deep = wf.loss_exponent(wf.DNN(3, "linear"), source=0.5, capacity=1.5, rate=0.01, steps=120, richness=4.0)
    assert deep.exponent.values[-1] > float(deep.printed_exponent) > 0.6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wf.transfer(NET, over="data", values=[1], steps=4), "`over` must be one of 'width', 'depth'"),
        (lambda: wf.transfer(NET, over="width", values=[], steps=4), "`values` must be a list of positive numbers"),
        (lambda: wf.transfer(NET, over="depth", values=[1.5], steps=4), "`values` must be whole numbers"),
        (
            lambda: wf.transfer(NET, over="width", values=[np.inf], steps=4, parameterization="ntk"),
            "`values` must be finite with parameterization='ntk'",
        ),
        (lambda: wf.optimal_rate(NET, steps=4, rates=[-1.0]), "`rates` must be positive"),
        (lambda: wf.loss_exponent(NET, source=0.5, capacity=1.0, rate=0.1, steps=20), "`capacity` must exceed 1"),
    ],
)
def test_bad_input_of_the_searches(call, message):
    with pytest.raises(ValueError, match=message):
        call()
