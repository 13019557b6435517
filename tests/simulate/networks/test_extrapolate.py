"""2·wide − narrow removes the 1/n offset."""

from dataclasses import replace

import numpy as np
import pytest

import widefield as wf

from ..students import agrees

X = np.array([[0.6, -0.3, 1.0]])
NET = wf.RNN(3, "linear", weight_variance=1.4)


def run(net=NET, x=X, **changes):
    return wf.simulate.prior(net, wf.Task(x), **({"width": 8, "replicates": 10, "seed": 0} | changes))


def test_offset_is_removed():
    """⟨h⁰ · h²⟩/n of a linear recurrent network is w K/n: the limit is zero."""
    wide = run(width=8, replicates=20_000, seed=0)
    result = wf.simulate.extrapolate(wide, run(width=4, replicates=20_000, seed=1))
    assert not agrees(0.0, wide.hidden.values[:, 0, 2])
    assert agrees(0.0, result.hidden.values[:, 0, 2])
    assert result.hidden.dims == wide.hidden.dims and result.output.dims == wide.output.dims
    assert "draw" not in result.data and "draw" in result.certificate.left_out
    assert result.certificate.theory == "simulate.extrapolate" and result.certificate.options["wide_width"] == 8


def test_after_a_file(tmp_path):
    wide, narrow = run(), run(width=4, seed=1)
    direct = wf.simulate.extrapolate(wide, narrow)
    read = wf.simulate.extrapolate(*(wf.load(s.save(tmp_path / f"{i}.nc")) for i, s in enumerate((wide, narrow))))
    np.testing.assert_array_equal(direct.hidden, read.hidden)
    np.testing.assert_array_equal(direct.hidden, 2 * wide.hidden.values - narrow.hidden.values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 5}, "twice the width"),
        ({"seed": 0}, "different seeds"),
        ({"replicates": 9}, "replicates"),
        ({"net": wf.RNN(3, "linear", weight_variance=1.5)}, "same network"),
        ({"net": wf.RNN(3, "erf", weight_variance=1.4)}, "same network"),
        ({"x": X + 1}, "same task"),
        ({"quantities": "draw"}, "no average over neurons in common"),
    ],
)
def test_mismatches_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        wf.simulate.extrapolate(run(), run(**({"width": 4, "seed": 1} | change)))


def as_kind(solution, theory, **options):
    options = solution.certificate.options | options
    return replace(solution, certificate=replace(solution.certificate, theory=theory, options=options))


def test_any_two_simulations_of_one_kind():
    wide, narrow = run(), run(width=4, seed=1)
    result = wf.simulate.extrapolate(*(as_kind(s, "simulate.dynamics", rate=0.1) for s in (wide, narrow)))
    np.testing.assert_array_equal(result.hidden, 2 * wide.hidden.values - narrow.hidden.values)
    assert result.certificate.options["simulation"] == "simulate.dynamics"
    assert result.certificate.options["rate"] == 0.1
    with pytest.raises(ValueError, match="same kind, got simulate.dynamics and simulate.prior"):
        wf.simulate.extrapolate(as_kind(wide, "simulate.dynamics"), narrow)
    with pytest.raises(ValueError, match="same `rate`, got 0.1 and 0.2"):
        wf.simulate.extrapolate(as_kind(wide, "simulate.prior", rate=0.1), as_kind(narrow, "simulate.prior", rate=0.2))


def trained(width, seed, rate=0.1, **options):
    task, training = wf.Task(X, [1.0]), wf.Training(rate, 2)
    return wf.simulate.dynamics(wf.DNN(2, "tanh"), task, training, width=width, replicates=3, seed=seed, **options)


def test_trainings_keep_their_question_and_must_be_the_same():
    wide, narrow = trained(8, 0, at=[0, 2]), trained(4, 1, at=[0, 2])
    result = wf.simulate.extrapolate(wide, narrow)
    np.testing.assert_array_equal(result.loss, 2 * wide.loss.values - narrow.loss.values)
    np.testing.assert_array_equal(result.data["time"], wide.data["time"])
    np.testing.assert_array_equal(result.data["at"], [0, 2])
    assert result.training is wide.training and "pregradient" not in result.data
    with pytest.raises(ValueError, match="same training: `rate` differs"):
        wf.simulate.extrapolate(wide, trained(4, 1, rate=0.2, at=[0, 2]))


def test_losses_are_told_apart_by_their_source():
    def train(width, loss):
        return wf.simulate.dynamics(
            wf.DNN(1, "linear"), wf.Task(np.eye(2), [1.0, -1.0]), wf.Training(0.1, 2, loss=loss), width=width, replicates=3,
            seed=0, quantities="loss",
        )  # fmt: skip

    wide = train(16, lambda f, y: 0.5 * ((f - y) ** 2).sum())
    narrow = train(8, lambda f, y: 0.1 * ((f - y) ** 2).sum())
    with pytest.raises(ValueError, match="same training: `loss` differs"):
        wf.simulate.extrapolate(wide, narrow)


def test_a_failed_simulation_makes_no_success():
    wide, narrow = run(seed=0), run(width=4, seed=1)
    lost = replace(wide.certificate, failure=wf.Status.not_converged)
    with pytest.raises(wf.SolveError, match="not_converged"):
        wf.simulate.extrapolate(replace(wide, certificate=lost), narrow)
    result = wf.simulate.extrapolate(replace(wide, certificate=lost), narrow, throw=False)
    assert result.certificate.checks["failed"].value == 1 and np.isfinite(result.hidden).all()


def test_how_the_law_was_sampled_may_differ():
    wide, narrow = run(width=12, method="weight_free"), run(width=6, seed=1, method="dense")
    assert "hidden" in wf.simulate.extrapolate(wide, narrow).data


def test_only_simulations():
    once = wf.simulate.extrapolate(run(), run(width=4, seed=1))
    with pytest.raises(ValueError, match="`wide`"):
        wf.simulate.extrapolate(once, run())
    with pytest.raises(ValueError, match="`narrow`"):
        wf.simulate.extrapolate(run(), 3)
    with pytest.raises(ValueError, match="`narrow`"):
        wf.simulate.extrapolate(run(), wf.prior(NET, wf.Task(X)))
