"""Every option of every call: type and range, refused by name before any work; what is allowed at the ends of the range."""

import time

import numpy as np
import pytest

import widefield as wf

UNIT = wf.Task(np.ones((1, 1)), np.ones(1))
LINEAR, ERF = wf.RNN(3, "linear"), wf.RNN(3, "erf")
WRONG = {
    "temperature": (True, "1", None, np.nan, np.inf, -1.0, 0.0, [1.0]),
    "rtol": (True, "1e-3", np.nan, 0.0, -1e-3, 1.0, [1e-3]),
    "max_steps": (True, "300", 0, 2.0, 10**30, None),
    "seed": (True, "0", -1, 0.5, 2**70, None),
    "paths": (True, "abc", 1000, 2048.0),
    "along": ("width", 3, None),
    "points": (True, "5", 1, 3.0, 10**9),
    "branch": ("both", 1, None),
    "method": ("guess", 0, None),
    "integration": ("guess", 1, None),
    "order": (True, "2", 3, -1, 1.0),
    "throw": (1, "yes", None),
    "progress": (1, "yes"),
    "values": ("abc", [0.0, 1.0], [0.5, 0.1], [np.nan], []),
}
CALLS = {
    "posterior": (wf.posterior, "temperature rtol max_steps seed paths branch method integration throw progress"),
    "perturbative": (wf.posterior, "temperature rtol max_steps seed paths branch integration order throw progress"),
    "transition": (wf.transition, "temperature rtol max_steps seed paths along points throw progress"),
    "tricritical": (wf.tricritical, "temperature rtol max_steps throw progress"),
    "landscape": (wf.landscape, "temperature rtol max_steps values throw progress"),
}


@pytest.mark.parametrize("network", [LINEAR, ERF], ids=["linear", "erf"])
@pytest.mark.parametrize("name", CALLS)
def test_wrong_options_are_refused_by_name(name, network):
    call, options = CALLS[name]
    if name == "perturbative" and network is ERF:
        return
    given = {"temperature": 1.0} | ({"method": "perturbative"} if name == "perturbative" else {})
    for option in options.split():
        for value in WRONG[option]:
            if name == "perturbative" and option == "paths" and value is None:
                continue
            with pytest.raises(ValueError, match=f"`{option}`"):
                call(network, UNIT, **given | {option: value})
                pytest.fail(f"{name}({option}={value!r}) was taken")


@pytest.mark.parametrize("along", [(True, 0), "ab", (0, 5), (0, 0), 1, (0, 1, 2), (0.0, 1.0), (-1, 0)])
def test_a_landscape_needs_two_states(along):
    with pytest.raises(ValueError, match="`along`"):
        wf.landscape(LINEAR, UNIT, temperature=1.0, along=along)


@pytest.mark.parametrize("solution", [None, 3, "posterior"])
def test_outliers_need_a_solution(solution):
    with pytest.raises(ValueError, match="`solution`"):
        wf.weight_outliers(solution)


def test_the_ends_of_the_range_of_temperatures():
    """Very hot is the random network, very cold fits the label; never a number that is not one beside success."""
    for kappa, prediction in ((1e300, 0.0), (1e-300, 1.0)):
        found = wf.posterior(LINEAR, UNIT, temperature=kappa, throw=False)
        values = [found[name] if isinstance(found, dict) else found.data[name].values for name in found.data.data_vars]
        finite = all(np.isfinite(v).all() for v in values if v.dtype.kind == "f")
        assert finite or found.status is not wf.Status.success
        np.testing.assert_allclose(found.prediction.values[-1], prediction, atol=1e-9)


@pytest.mark.parametrize("activation", ["linear", "erf", "relu"])
@pytest.mark.parametrize("make", [wf.RNN, wf.DNN])
def test_without_inputs_nothing_moves(activation, make):
    """|y|²/2κ is what the labels cost; all states and predictions are zero, and the stability is that of no direction."""
    task = wf.Task(np.zeros((2, 3)), np.array([1.0, 2.0]), x_test=np.zeros((1, 3)))
    found = wf.posterior(make(3, activation), task, temperature=0.5)
    np.testing.assert_allclose([found.free_energy, found.energy, found.entropy], [5.0, 5.0, 0.0], atol=1e-14)
    for name in ("hidden", "feature", "prediction", "test_prediction"):
        np.testing.assert_array_equal(found.data[name], 0)
    assert found.stability == 1.0 and found.branch == "incoherent"
    assert all(np.isfinite(check.value) for check in found.certificate.checks.values())


def test_what_does_not_fit_is_refused_at_once():
    """Kernels of 15000 nodes, and more draws than there is memory."""
    rng = np.random.default_rng(0)
    large = wf.Task(rng.normal(size=(5000, 2)), rng.normal(size=5000))
    small = wf.Task(rng.normal(size=(3, 2)), rng.normal(size=3))
    for call in (
        lambda: wf.posterior(LINEAR, large, temperature=1.0),
        lambda: wf.posterior(ERF, large, temperature=1.0),
        lambda: wf.transition(LINEAR, large, temperature=1.0),
        lambda: wf.posterior(ERF, small, temperature=1.0, paths=10**12),
        lambda: wf.transition(ERF, UNIT, temperature=1.0, paths=10**12),
    ):
        begun = time.perf_counter()
        with pytest.raises(MemoryError, match=r"\d (k|M|G|T)B.*may be used"):
            call()
        assert time.perf_counter() - begun < 1
