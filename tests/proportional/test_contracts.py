"""What every theory promises, and what is particular to this one: divergence, bad input, sweeps and transfer."""

import dataclasses
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import widefield as wf
from tests import contracts
from tests.proportional import words
from tests.proportional.words import posed
from widefield.theories.proportional.derived import rate_search
from widefield.theories.proportional.march import Parameters, Shape, causal, march
from widefield.theories.proportional.march.causal import buffer_sizes, segments
from widefield.theories.proportional.march.isotropic import Source
from widefield.theories.proportional.verification import residual

NET = wf.DNN(2, "linear")
PHYSICS = {"rate": 0.05, "steps": 8, "richness": 0.8, "width_ratio": 0.7, "data_ratio": 1.5, "label_noise": 0.2}
SHAPE = Shape(n_steps=5, depth=2)


def residual_core(rate, richness, branch):
    source = Source(jnp.zeros(()), jnp.eye(1), jnp.zeros(()), jnp.ones(()))
    parameters = Parameters(rate, richness, 1 / richness, jnp.ones(()), jnp.ones(3), source, branch)
    return march(parameters, Shape(n_steps=4, depth=3, reused=False, residual=True)).inputs.losses


def ask(network=NET, **changes):
    return words.ask(wf.proportional, network, **PHYSICS | changes)


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


def test_rejects_tracers():
    for argument, value in (("richness", 0.8), ("rate", 0.05), ("label_noise", 0.1)):
        with pytest.raises(ValueError, match=f"`{argument}` is a JAX tracer"):
            jax.jit(lambda v, name=argument: ask(**{name: v}).test_loss.values)(value)


def test_save_and_load(tmp_path):
    solution = ask(wf.ResNet(3, "linear", 0.6))
    again = wf.load(solution.save(tmp_path / "p.nc"))
    assert again.data.identical(solution.data) and again.network == solution.network
    assert again.certificate == solution.certificate
    assert str(again.teacher) == str(solution.teacher) and str(again.training) == str(solution.training)


def test_single_precision():
    single, double = ask(dtype="float32"), ask()
    contracts.assert_arrays_are_numpy(single, "float32")
    assert single.certificate.dtype == "float32" and single.residual > 1e-9
    np.testing.assert_allclose(single.test_loss, double.test_loss, rtol=1e-4)


def test_divergence_is_a_status_with_its_step():
    partial = contracts.assert_fails_loudly(lambda throw: ask(rate=5.0, throw=throw), wf.Status.diverged)
    step = partial.certificate.diagnostics["diverged_at_step"]
    assert 0 < step < 8 and np.isinf(partial.test_loss[step:]).all() and np.isfinite(partial.test_loss[:step]).all()
    assert dataclasses.replace(partial.certificate, failure=None).status is wf.Status.diverged, "from its checks alone"
    assert not any(np.isnan(field).any() for field in partial.data.values())
    # the steps before are those of a run that stops in time
    early = ask(rate=5.0, steps=step - 1 or 1, throw=False)
    np.testing.assert_allclose(early.test_loss[:step], partial.test_loss[:step], rtol=1e-10)


def test_a_flow_exists_where_its_first_rates_diverge():
    """Three rates are left: their limit is finite, and its error says that they are too few."""
    found = wf.proportional(
        wf.DNN(2, "linear"), wf.Teacher(data_ratio=2.0), wf.Training(2.0, 4, flow=True), width_ratio=1.0,
        quantities="test_loss", throw=False,
    )  # fmt: skip
    assert found.status is wf.Status.inaccurate and found.certificate.diagnostics == {"marches": 3}
    assert np.isfinite(found.test_loss).all() and found.test_loss[-1] < found.test_loss[0]


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
        ({"width": 100}, "`width` goes with a `spectrum`; isotropic data take `width_ratio`"),
        ({"spectrum": ([1.0], [1.0])}, "`data_ratio` does not go with a `spectrum` of single modes"),
        ({"data_ratio": None, "spectrum": ([1.0], [1.0])}, "`spectrum` goes with `width=`"),
        ({"data_ratio": None, "spectrum": ([1.0], [1.0]), "samples": 9}, "`samples` of the teacher is not covered"),
        ({"spectrum": ([1.0], [1.0], [1.0])}, "`spectrum` of the teacher is not covered by proportional"),
        ({"inputs": "same"}, "`inputs` of the teacher is not covered by proportional"),
        ({"supervised": (-1,)}, "`supervised` of the teacher is not covered by proportional"),
        ({"weight_decay": 0.1}, "`weight_decay` of the training is not covered by proportional"),
        ({"momentum_time": 1.0}, "`momentum_time` of the training is not covered"),
        ({"temperature": 0.1}, "`temperature` of the training is not covered"),
        ({"loss": "logistic"}, "`loss` of the training is not covered"),
        ({"batches": np.ones((8, 3))}, "`batches` of the training is not covered"),
        ({"initial_scale": 2.0}, "`initial_scale` of the training is not covered"),
        ({"rtol": 0.0}, "`rtol` must be a finite positive number"),
        ({"target_overlap": [[1.0, 2.0], [2.0, 1.0]]}, "`target_overlap` must be a symmetric matrix without negative"),
        ({"infinite_depth": True}, "`infinite_depth` needs a ResNet"),
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
        ask(network)


def test_nouns_are_asked_for():
    with pytest.raises(ValueError, match="`teacher` must be a widefield.Teacher, got Training"):
        wf.proportional(NET, wf.Training(0.1, 2), wf.Teacher())
    with pytest.raises(ValueError, match="`training` must be a widefield.Training, got dict"):
        wf.optimal_rate(NET, wf.Teacher(), {"rate": 0.1})


def test_growing_buffers_change_nothing(monkeypatch):
    whole = ask()
    monkeypatch.setattr(causal, "SMALLEST", 5)
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
    with jax.enable_x64(True):
        problem = posed(NET, **PHYSICS)
        state = march(problem.parameters, problem.shape)
        assert residual(problem, state, problem.n_rows) < 1e-13
        matrix = getattr(state.inputs, name)
        at = (4, 0, 2) if matrix.ndim == 3 else (4, 2)
        wrong = state._replace(inputs=state.inputs._replace(**{name: matrix.at[at].add(1e-6)}))
        assert residual(problem, wrong, problem.n_rows) > 1e-8


def test_a_depth_that_equals_the_buffer_is_no_time():
    """Six steps have buffers of eight rows: as many as there are layers."""
    solution = words.ask(wf.proportional, wf.ResNet(8, "linear", 0.3), rate=0.02, steps=6, width_ratio=1.0)
    assert solution.residual < 1e-13


@pytest.mark.parametrize("n_modes", [10, 20])
def test_as_many_modes_as_rows_are_no_time(n_modes):
    """Eight steps have buffers of ten rows."""
    k = np.arange(1.0, n_modes + 1)
    physics = {"rate": 0.05, "steps": 8, "spectrum": (k**-1.5, k**-2.0)}
    noisy = words.ask(wf.proportional, NET, **physics, width=20, batch=20)
    assert noisy.residual < 1e-13
    quiet = words.ask(wf.proportional, NET, **physics)
    assert quiet.residual < 1e-13 and np.all(quiet.test_loss[1:] < noisy.test_loss[1:])


SWEEP = {"rates": [0.02, 0.05, 9.0], "width_ratios": [0.5, 2.0], "steps": 8, "data_ratio": 1.5}


def test_a_sweep_is_its_runs():
    swept = words.ask(wf.rate_sweep, NET, **SWEEP)
    assert swept.test_loss.dims == ("width_ratio", "rate", "step")
    one = words.ask(wf.proportional, NET, rate=0.05, steps=8, data_ratio=1.5, width_ratio=2.0)
    np.testing.assert_allclose(swept.test_loss.sel(width_ratio=2.0, rate=0.05), one.test_loss, rtol=1e-12)
    assert np.isinf(swept.test_loss.sel(rate=9.0).values[:, -1]).all()
    assert swept.certificate.diagnostics == {"runs": 6, "diverged": 2}
    assert (
        swept.notes == ("2 of 6 runs diverged, from rate 9 on: their losses are infinite",) and swept.residual < 1e-13
    )


def test_a_wrong_sweep_is_seen(monkeypatch):
    """Losses a millionth off do not pass beside the march of one of them."""
    right = rate_search.sweep
    monkeypatch.setattr(rate_search, "sweep", lambda problems: right(problems) * (1 + 1e-6))
    swept = words.ask(wf.rate_sweep, NET, **SWEEP, throw=False)
    assert swept.status is wf.Status.inaccurate and 1e-7 < swept.residual < 2e-6


def test_channels_are_averaged_in_a_sweep():
    physics = {"steps": 8, "batch_ratio": 1.5, "target_overlap": [[1.0, 0.3], [0.3, 0.5]]}
    swept = words.ask(wf.rate_sweep, NET, rates=[0.05], **physics)
    one = words.ask(wf.proportional, NET, rate=0.05, **physics)
    np.testing.assert_allclose(swept.test_loss[0, 0], one.test_loss.mean("output"), rtol=1e-12)


def test_a_search_compiles_once():
    rate_search.losses.clear_cache()
    moved = words.ask(wf.rate_transfer, NET, over="width", values=[0.5, 2.0], steps=8, data_ratio=1.5)
    assert rate_search.losses._cache_size() == 1
    assert moved.optimal_rate.dims == ("width_ratio", "step")
    assert moved.certificate.theory == "rate_transfer" and moved.certificate.error <= 1e-2
    assert moved.teacher.data_ratio == 1.5 and moved.training.steps == 8


OPTIMUM = {"steps": 8, "richness": 2.0, "width_ratio": 1.0}


def test_the_optimal_rate_is_the_best_and_the_maximal_one_the_edge():
    solution = words.ask(wf.optimal_rate, NET, **OPTIMUM)
    best, edge = solution.optimal_rate.values[-1], float(solution.maximal_rate)

    def loss(rate):
        return words.ask(wf.proportional, NET, rate=rate, **OPTIMUM, throw=False).test_loss.values

    assert loss(best)[-1] <= min(loss(0.97 * best)[-1], loss(1.03 * best)[-1])
    above = edge + 2 * float(solution.maximal_rate_error)
    assert loss(edge)[-1] < loss(edge)[0] and not loss(above)[-1] < loss(above)[0]
    checks = solution.certificate.checks
    assert checks["error"].value == max(
        solution.optimal_rate_error.values[-1] / best, solution.maximal_rate_error.values / edge
    )
    assert checks["error"].limit == 1e-2 and checks["unbracketed"].value == 0 and solution.residual < 1e-13
    assert solution.certificate.diagnostics["diverged"] > 0


def test_a_search_goes_on_until_its_tolerance_is_met():
    fine = words.ask(wf.optimal_rate, wf.DNN(1, "linear"), steps=1, richness=0.0, centered=True, rtol=1e-5)
    assert fine.certificate.error <= 1e-5 and fine.certificate.diagnostics["runs"] > 80
    np.testing.assert_allclose(fine.optimal_rate.values[-1], 0.5, rtol=1e-5)


def test_a_search_that_is_too_coarse_or_too_narrow_is_no_success():
    best = 0.05
    near = words.ask(wf.optimal_rate, NET, rates=best * np.geomspace(0.1, 30, 12), **OPTIMUM, throw=False)
    assert near.status is wf.Status.inaccurate and near.certificate.checks["unbracketed"].met
    stable = words.ask(wf.optimal_rate, NET, rates=[0.001, 0.002], rtol=0.5, **OPTIMUM, throw=False)
    assert stable.status is wf.Status.incomplete and stable.certificate.checks["unbracketed"].value == 2
    assert np.isinf(stable.maximal_rate_error) and np.isinf(stable.optimal_rate_error[-1])
    assert "lies at the end of the rates" in stable.notes[-1]
    unstable = words.ask(wf.optimal_rate, NET, rates=[3.0, 5.0], **OPTIMUM, throw=False)
    assert unstable.status is wf.Status.incomplete and unstable.certificate.diagnostics["diverged"] == 2
    with pytest.raises(wf.SolveError, match="incomplete"):
        words.ask(wf.optimal_rate, NET, rates=[3.0, 5.0], **OPTIMUM)


def test_a_search_on_structured_data_knows_its_rule():
    k = np.arange(1.0, 401)
    solution = words.ask(wf.optimal_rate, NET, steps=8, richness=2.0, spectrum=(k**-1.5, k**-2.2), throw=False)
    assert solution.status is wf.Status.success and 0 < solution.certificate.checks["spectrum"].value < 1e-6


def test_lazy_regression_has_the_textbook_optimum():
    """One step on the population, lazy: the error is (1 − 2η)², zero at ½, below its start up to 1."""
    solution = words.ask(wf.optimal_rate, wf.DNN(1, "linear"), steps=1, richness=0.0, centered=True)
    np.testing.assert_allclose(solution.optimal_rate.values[-1], 0.5, rtol=1e-3)
    np.testing.assert_allclose(solution.maximal_rate, 1.0, rtol=1e-3)


def test_transfer_in_the_rich_regime():
    """Eq. 70: the largest stable rate grows as ν^{1−1/L} in NTK parameterization, and is flat in μP."""
    physics = {"over": "width", "values": [1.0, 4.0], "steps": 20, "richness": 4.0}
    kinds = ("ntk", "mup")
    edges = [
        words.ask(wf.rate_transfer, wf.DNN(3, "linear"), parameterization=k, **physics).maximal_rate for k in kinds
    ]
    ntk, mup = (np.log(edge.values[1] / edge.values[0]) / np.log(4) for edge in edges)
    assert abs(ntk - 2 / 3) < 0.06 and abs(mup) < 0.15


@pytest.mark.full
def test_transfer_over_depth():
    """Constant branches: the optimum collapses. Scaled as 1/√L it settles."""
    physics = {"over": "depth", "values": [2, 4, 8, 16], "steps": 12, "width_ratio": 1.0}
    constant, scaled = (
        words.ask(wf.rate_transfer, wf.ResNet(1, "linear", branch), scaled_branch=scaled, **physics)
        .optimal_rate.values[:, -1]
        for branch, scaled in ((1.0, False), (1.25, True))
    )  # fmt: skip
    assert constant[0] / constant[-1] > 1e4
    assert scaled[-2] / scaled[-1] < 1.5 and np.all(np.diff(np.log(scaled)) > np.log(0.4))


def exponent(depth, **changes):
    physics = {"source": 0.8, "capacity": 1.5, "rate": 0.3, "steps": 120, "richness": 0.0} | changes
    _, training, rest = words.nouns(physics)
    return wf.loss_exponent(wf.DNN(depth, "linear"), training, **rest)


@pytest.mark.full
def test_power_law_exponents():
    """Lazy: the source exponent. Rich: above the printed exponent, which does not know the depth."""
    lazy = exponent(1)
    assert abs(lazy.exponent.values[-1] - 0.8) < 0.02
    assert float(lazy.depth_exponent) == float(lazy.printed_exponent)  # one hidden layer
    deep = exponent(3, source=0.5, rate=0.01, richness=4.0)
    assert deep.exponent.values[-1] > float(deep.printed_exponent) > 0.6


def test_an_exponent_that_still_moves_is_no_success():
    slope = exponent(1, steps=16, rtol=1e-4, throw=False)
    change = float(slope.exponent_error / slope.exponent[-1])
    assert slope.status is wf.Status.inaccurate and slope.certificate.error == pytest.approx(change)
    assert exponent(1, steps=16).status is wf.Status.success
    grown = exponent(1, steps=16, rate=30.0, throw=False)
    assert grown.status is wf.Status.diverged and grown.certificate.diagnostics["diverged_at_step"] > 0


def search(call, **changes):
    return lambda: words.ask(getattr(wf, call), NET, steps=4, **changes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (search("rate_transfer", over="data", values=[1]), "`over` must be one of 'width', 'depth'"),
        (search("rate_transfer", over="width", values=[]), "`values` must be a list of positive numbers"),
        (search("rate_transfer", over="depth", values=[1.5]), "`values` must be whole numbers"),
        (search("rate_transfer", over="width", values=[1.0, np.inf]), "`values` must hold at least two finite ones"),
        (
            search("rate_transfer", over="width", values=[1.0, 2.0, np.inf], parameterization="ntk"),
            "`values` must be finite with parameterization='ntk'",
        ),
        (
            search("rate_transfer", over="depth", values=[1, 2], parameterization="ntk"),
            "`width_ratio` must be finite with parameterization='ntk'",
        ),
        (search("rate_transfer", over="width", values=[1, 2], width_ratio=1.0), "`width_ratio` goes with over='depth'"),
        (search("optimal_rate", rates=[-1.0]), "`rates` must be positive"),
        (search("rate_sweep", rates=[0.1], width_ratios=[-1.0]), "`width_ratios` must be a list of positive numbers"),
        (
            search("rate_sweep", rates=[0.1], spectrum=([1.0], [1.0])),
            "`spectrum` of the teacher is not covered by rate",
        ),
        (search("optimal_rate", rate=[0.1, 0.1, 0.2, 0.2]), "`rate` of the training is a schedule; optimal_rate looks"),
        (search("optimal_rate", flow=True), "`flow` of the training is not covered by optimal_rate"),
        (search("rate_sweep", rates=[0.1], weight_decay=0.1), "`weight_decay` .* is not covered by rate_sweep"),
        (lambda: exponent(2, capacity=1.0, steps=20), "`capacity` must exceed 1"),
        (lambda: exponent(2, flow=True), "`flow` of the training is not covered by loss_exponent"),
    ],
)
def test_bad_input_of_the_searches(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# what a sweep says about runs that diverge


def test_a_sweep_in_which_a_width_has_only_diverged_runs_is_no_success():
    lost = words.ask(
        wf.rate_sweep, NET, rates=[8.0, 9.0], width_ratios=[0.5, 2.0], steps=8, data_ratio=1.5, throw=False
    )
    assert lost.status is wf.Status.diverged and lost.certificate.checks["all_diverged"].value == 2
    assert "every run diverged in 2 of 2 searches: lower the rates" in lost.notes
    with pytest.raises(wf.SolveError, match="all_diverged"):
        words.ask(wf.rate_sweep, NET, rates=[8.0, 9.0], width_ratios=[0.5], steps=8, data_ratio=1.5)


def test_a_march_that_starts_at_infinity_has_diverged():
    """(1 + β²)^{L−1} overflows: no row is left to check, and none is NaN."""
    found = ask(wf.ResNet(3, "linear", 1e100), throw=False)
    assert found.status is wf.Status.diverged and np.isinf(found.test_loss).all() and np.isnan(found.residual)


# options: whatever is given, a ValueError that names it

NO_NUMBERS = (
    None,
    "x",
    np.nan,
    1j,
    True,
    [],
    [[0.1, 0.2], [0.3]],
    np.array([1, None], dtype=object),
    [None],
    b"x",
    {"a": 1},
)
NO_SIZES = ("x", np.nan, 1j, True, [], [0.1], -1.0, 0, -np.inf, 5e-324, 1e308, np.ones((2, 2)))
NO_SWITCHES = (1, 0.0, "no", [], [True], np.ones(2))
SWEPT = {
    "optimal_rate": {"rates": [0.01, 2.0]},
    "rate_sweep": {"rates": [0.01]},
    "rate_transfer": {"over": "width", "values": [1, 2]},
}
OPTIONS = [
    *[("proportional", "width_ratio", bad) for bad in NO_SIZES],
    *[("optimal_rate", "width_ratio", bad) for bad in NO_SIZES],
    *[("rate_transfer", "width_ratio", bad) for bad in (*NO_SIZES, 2.0)],
    *[("rate_sweep", "rates", bad) for bad in (*NO_NUMBERS, [0.1, np.inf], [0.0], [-1.0, 1.0], np.ones((2, 2)), 0.1)],
    *[("optimal_rate", "rates", bad) for bad in (*NO_NUMBERS[1:], [0.1, np.inf], [0.0])],
    *[("rate_sweep", "width_ratios", bad) for bad in (*NO_NUMBERS, [0.5, np.nan], [5e-324, 1.0], [1e308], 2.0)],
    *[("rate_transfer", "values", bad) for bad in (*NO_NUMBERS, [0.5, np.nan], [5e-324, 1.0], [1.0, np.inf], 2.0)],
    *[(call, "throw", bad) for call in ("proportional", *SWEPT) for bad in (None, *NO_SWITCHES)],
    *[(call, "progress", bad) for call in ("proportional", *SWEPT) for bad in NO_SWITCHES],
    *[(call, "richness", bad) for call in ("proportional", *SWEPT) for bad in (5e-324, 1e-300, 1e200)],
    *[("rate_transfer", "parameterization", bad) for bad in (None, "sp", 1)],
    *[("rate_transfer", "scaled_branch", bad) for bad in NO_SWITCHES],
    *[("optimal_rate", "rtol", bad) for bad in (0, 1.0, 1e-9, np.nan, None, "x", [0.1], 1j)],
]


@pytest.mark.parametrize(("call", "name", "bad"), OPTIONS)
def test_options_are_refused_by_name(call, name, bad):
    with pytest.raises(ValueError, match=f"`{name}`"):
        words.ask(getattr(wf, call), NET, **{"steps": 4} | SWEPT.get(call, {}) | {name: bad})


@pytest.mark.parametrize("values", [[1, np.inf], [1.0, 1e300], [2, 10**9]])
def test_depths_are_numbers_of_layers(values):
    with pytest.raises(ValueError, match="`values` must be whole numbers of layers"):
        words.ask(wf.rate_transfer, NET, over="depth", values=values, steps=4)
    with pytest.raises(ValueError, match="`network` must be a widefield.Network"):
        words.ask(wf.rate_transfer, None, over="depth", values=[1, 2], steps=4)


@pytest.mark.parametrize(
    ("name", "bad"),
    [*[("source", bad) for bad in (0, -1.0, np.nan, 1e-300, 1e300, None, "x", [0.5], 1j, True)],
     *[("capacity", bad) for bad in (0, 1.0, 21.0, np.inf, 1e300, None, "x", [1.5], 1j, True)],
     ("throw", 1), ("progress", "yes")],
)  # fmt: skip
def test_options_of_the_exponent_are_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=f"`{name}`"):
        exponent(1, steps=16, **{name: bad})


# memory: predicted, and refused with what would fit

PEAK = """
import psutil, numpy as np, widefield as wf
from widefield.theories.proportional.problem import pose
from widefield.theories.proportional.training_curves import memory_of
net, training = {net}, wf.Training(0.002, {steps})
wf.proportional(net, wf.Teacher(data_ratio=1.5), wf.Training(0.01, 4), width_ratio=1.0)
before = psutil.Process().memory_info().rss
wf.proportional(net, wf.Teacher(data_ratio=1.5), training, width_ratio=1.0, quantities="test_loss")
used = 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) - before
print(used / memory_of(pose(net, wf.Teacher(data_ratio=1.5), training, width_ratio=1.0)))
"""


@pytest.mark.full
@pytest.mark.parametrize(("net", "steps"), [('wf.ResNet(6, "linear", 0.4)', 560), ('wf.DNN(3, "linear")', 1400)])
def test_memory_is_predicted(net, steps):
    """Dense and compressed: the peak of a process of its own, within a factor of 1.5."""
    ratio = float(
        subprocess.run(
            [sys.executable, "-c", PEAK.format(net=net, steps=steps)], capture_output=True, text=True, check=True
        ).stdout
    )
    assert 1 / 1.5 < ratio < 1.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ask(steps=10**6, rate=0.01),
            r"matrices over 1000000 steps .* need .* TB.* About \d+ steps would fit",
        ),
        (lambda: ask(steps=10**7, rate=0.01), r"About \d+ steps would fit"),
        (lambda: words.ask(wf.optimal_rate, NET, steps=10**6), r"About \d+ steps would fit"),
        (lambda: words.ask(wf.rate_sweep, NET, rates=[0.1, 0.2], width_ratios=[1.0], steps=10**6), "steps would fit"),
        (lambda: exponent(3, steps=10**6), r"About \d+ steps would fit"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(call, message):
    with pytest.raises(MemoryError, match=message):
        call()


def test_many_modes_and_many_rates_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=2e8))
    k = np.arange(1.0, 2e5)
    with pytest.raises(MemoryError, match="Gauss rules of 199999 eigenvalues need 326 MB.* About 98039 eigenvalues"):
        words.ask(wf.proportional, NET, steps=4, spectrum=(k**-1.5, k**-2.0))
    with pytest.raises(MemoryError, match=r"`rates`: 1000000 curves need .* About \d+ rates would fit"):
        words.ask(wf.rate_sweep, NET, rates=np.linspace(0.01, 0.1, 10**6), width_ratios=[1.0], steps=4)
