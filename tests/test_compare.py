"""Metrics against brute force and closed forms; verdicts that accept the right theory and reject a near one."""

import json
import re
import types

import jax
import numpy as np
import psutil
import pytest
import scipy.stats
import xarray as xr
from scipy.integrate import quad

import widefield as wf
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import make_solution
from widefield.compare import Comparison, Pair, equal_states, judge, judge_all
from widefield.measures import agrees, norm_p, student_limit


def solution(fields, theory="fake"):
    return make_solution(fields, Certificate(theory, {"residual": Check(0.0, 1.0)}), wf.DNN(depth=3), None)


def kernel(rng, n=6, rank=None):
    features = rng.normal(size=(n, rank or n))
    return features @ features.T


# metrics on arrays


def test_relative_error_is_relative_to_the_first():
    assert wf.relative_error([3.0, 4.0], [3.0, 4.5]) == pytest.approx(0.1)
    assert wf.relative_error([1.0], [2.0]) == 1.0
    assert wf.relative_error([2.0], [1.0]) == 0.5
    assert wf.relative_error(np.zeros(3), np.zeros(3)) == 0.0
    assert wf.relative_error(np.zeros(3), np.ones(3)) == np.inf
    with pytest.raises(ValueError, match="shape of `a`"):
        wf.relative_error(np.zeros(3), np.zeros(2))


def test_alignment_is_the_cosine_and_keeps_leading_axes():
    rng = np.random.default_rng(0)
    K, L = kernel(rng), kernel(rng)
    by_hand = sum(K[i, j] * L[i, j] for i in range(6) for j in range(6))
    by_hand /= np.sqrt((K**2).sum() * (L**2).sum())
    assert wf.alignment(K, L) == pytest.approx(by_hand, rel=1e-14)
    assert wf.alignment(K, 7 * K) == pytest.approx(1.0, rel=1e-14)
    assert wf.alignment(np.diag([1.0, 0.0]), np.diag([0.0, 1.0])) == 0.0
    assert wf.alignment(K, np.stack([K, L])) == pytest.approx([1.0, by_hand])


def test_cka_ignores_scale_rotation_and_shift_of_features():
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(8, 5)), rng.normal(size=(8, 3))
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    expected = wf.cka(X @ X.T, Y @ Y.T)
    moved = 3.0 * X @ rotation + rng.normal(size=5)
    assert wf.cka(moved @ moved.T, Y @ Y.T) == pytest.approx(expected, rel=1e-12)
    assert wf.cka(moved @ moved.T, X @ X.T) == pytest.approx(1.0, rel=1e-12)
    Xc, Yc = X - X.mean(0), Y - Y.mean(0)
    features = np.linalg.norm(Xc.T @ Yc) ** 2 / (np.linalg.norm(Xc.T @ Xc) * np.linalg.norm(Yc.T @ Yc))
    assert expected == pytest.approx(features, rel=1e-12)


@pytest.mark.parametrize("metric", [wf.alignment, wf.cka])
def test_kernels_without_direction_or_shape_are_refused(metric):
    with pytest.raises(ValueError, match="zero|constant"):
        metric(np.zeros((3, 3)), np.eye(3))
    with pytest.raises(ValueError, match="square"):
        metric(np.ones((3, 2)), np.eye(3))
    with pytest.raises(ValueError, match="as many samples"):
        metric(np.eye(4), np.eye(3))
    with pytest.raises(ValueError, match="constant"):
        wf.cka(np.full((3, 3), 0.1), np.eye(3))


# maximum mean discrepancy


def brute_mmd2(x, y, length, unbiased):
    k = lambda a, b: np.exp(-np.sum((a - b) ** 2) / (2 * length**2))  # noqa: E731
    within = lambda s: [k(a, b) for i, a in enumerate(s) for j, b in enumerate(s) if i != j or not unbiased]  # noqa: E731
    return np.mean(within(x)) + np.mean(within(y)) - 2 * np.mean([k(a, b) for a in x for b in y])


@pytest.mark.parametrize("unbiased", [True, False])
def test_mmd2_of_two_samples_is_the_double_sum(unbiased):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(13, 3)), 0.7 * rng.normal(size=(9, 3)) + 0.2
    assert wf.mmd2(x, y, length=0.8, unbiased=unbiased) == pytest.approx(brute_mmd2(x, y, 0.8, unbiased), rel=1e-12)


def test_mmd2_in_blocks_equals_mmd2_in_one(monkeypatch):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(101, 2)), rng.normal(size=(57, 2))
    whole = wf.mmd2(x, y)
    monkeypatch.setitem(wf.mmd2.__globals__, "BLOCK_ENTRIES", 100)
    assert wf.mmd2(x, y) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("variance", [1e-3, 0.3, 40.0])
def test_gaussian_side_agrees_with_quadrature(variance):
    x, length, s = np.array([0.4, -1.1]), 0.5, np.sqrt(variance)
    density = lambda y: np.exp(-(y**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)  # noqa: E731
    k = lambda d: np.exp(-(d**2) / (2 * length**2))  # noqa: E731
    points = lambda c: {"points": sorted({0.0, c}), "epsabs": 1e-14, "limit": 400}  # noqa: E731
    cross = [quad(lambda y, c=c: k(c - y) * density(y), -12 * s, 12 * s, **points(c * (abs(c) < 12 * s)))[0] for c in x]
    far = quad(lambda d: k(d) * density(d / np.sqrt(2)) / np.sqrt(2), -17 * s, 17 * s, **points(0.0))[0]
    expected = k(x[0] - x[1]) + far - 2 * np.mean(cross)
    assert wf.mmd2(x, covariance=variance, length=length) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("rank", [3, 1])
def test_gaussian_side_is_the_limit_of_many_draws(rank):
    rng = np.random.default_rng(4)
    root = rng.normal(size=(3, rank))
    x = rng.normal(size=(40, 3))
    exact = wf.mmd2(x, covariance=root @ root.T)
    replicates = [wf.mmd2(x, rng.normal(size=(400, rank)) @ root.T) for _ in range(40)]
    assert agrees(exact, np.array(replicates))


def test_unbiased_estimator_is_unbiased_and_the_other_is_not_negative():
    rng = np.random.default_rng(5)
    root = rng.normal(size=(2, 2))
    sets = [rng.normal(size=(25, 2)) @ root.T for _ in range(400)]
    u = np.array([wf.mmd2(x, covariance=root @ root.T) for x in sets])
    v = np.array([wf.mmd2(x, covariance=root @ root.T, unbiased=False) for x in sets])
    assert agrees(0.0, u)
    assert u.min() < 0 <= v.min()
    assert not agrees(0.0, v)
    assert not agrees(0.0, np.array([wf.mmd2(x, covariance=2 * root @ root.T) for x in sets]))


def test_zero_covariance_is_a_point_at_the_origin():
    x = np.array([[0.3, 0.1], [0.0, -0.2]])
    assert wf.mmd2(x, covariance=np.zeros((2, 2))) == pytest.approx(wf.mmd2(x, np.zeros((2, 2))), rel=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either `other`"),
        ({"other": np.ones((3, 2)), "covariance": np.eye(2)}, "either `other`"),
        ({"covariance": np.eye(3)}, "shape"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "positive semi-definite"),
        ({"covariance": [[1.0, 0.5], [0.0, 1.0]]}, "symmetric"),
        ({"other": np.ones((3, 4))}, "dimension"),
        ({"other": np.ones((1, 2))}, "at least 2"),
        ({"covariance": np.eye(2), "length": 0.0}, "`length`"),
        ({"other": [[np.nan, 0.0], [0.0, 0.0]]}, "NaN"),
    ],
)
def test_mmd2_names_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        wf.mmd2(np.zeros((4, 2)), **options)


# z-scores and verdicts


def test_zscore_is_students():
    rng = np.random.default_rng(6)
    samples = rng.normal(1.0, 2.0, size=(9, 4))
    expected = scipy.stats.ttest_1samp(samples, 0.5).statistic
    assert wf.zscore(np.full(4, 0.5), samples) == pytest.approx(expected, rel=1e-12)
    assert student_limit(9, 4, 1e-6) == pytest.approx(scipy.stats.t.isf(1e-6 / 8, 8), rel=1e-10)


def test_verdict_accepts_the_right_theory_and_rejects_a_near_one():
    rng = np.random.default_rng(7)
    theory = 1.0 + rng.random((5, 5))
    samples = theory * (1 + 0.05 * rng.normal(size=(200, 5, 5)))
    assert agrees(theory, samples)
    assert not agrees(1.05 * theory, samples), "a 5 % error must be seen"


def test_entries_that_never_vary_score_zero_or_infinity():
    samples = np.tile([0.1 + 0.2, 1.0, 0.0, 2.0], (5, 1))
    samples[:, 3] += [0, 1, 2, 3, 4]
    z = wf.zscore([0.3, 1.1, 0.0, 4.0], samples)
    assert z[:3].tolist() == [0.0, -np.inf, 0.0]
    assert z[3] == 0.0
    samples[2, 1] += 2e-16
    assert wf.zscore([0.3, 1.0, 0.0, 4.0], samples)[1] == 0.0


def test_zscore_refuses_one_replicate_nan_and_other_shapes():
    with pytest.raises(ValueError, match="at least 2"):
        wf.zscore(1.0, [1.0])
    with pytest.raises(ValueError, match="NaN"):
        wf.zscore(1.0, [1.0, np.nan])
    with pytest.raises(ValueError, match="replicate"):
        wf.zscore(np.ones(3), np.ones((4, 2)))
    with pytest.raises(ValueError, match="alpha"):
        agrees(1.0, [1.0, 2.0], alpha=0.0)


# the table


@pytest.fixture
def pair():
    rng = np.random.default_rng(8)
    hidden, output = 1.0 + rng.random((3, 3)), np.array([[2.0]])
    theory = solution({"hidden": (("state", "state_"), hidden), "output": (("sample", "sample_"), output)})
    fields = {
        "hidden": (("replicate", "state", "state_"), hidden + 0.1 * rng.normal(size=(30, 3, 3))),
        "output": (("replicate", "sample", "sample_"), 1.3 * output + 0.1 * rng.normal(size=(30, 1, 1))),
        "draw": (("replicate", "state"), rng.normal(size=(30, 3))),
    }
    return theory, solution(fields, "simulation")


def test_comparison_says_what_was_compared(pair):
    theory, trial = pair
    table = wf.compare(theory, trial)
    assert [row.quantity for row in table] == ["hidden", "output"]
    row = table["hidden"]
    z = wf.zscore(theory.hidden, trial.hidden)
    worst = np.unravel_index(np.argmax(abs(z)), z.shape)
    assert row.agrees
    assert row.z == pytest.approx(z[worst])
    assert dict(row.index) == {"state": worst[0], "state_": worst[1]}
    assert row.theory == theory.hidden.values[worst]
    assert row.simulation == pytest.approx(trial.hidden.values[:, *worst].mean())
    assert row.stderr == pytest.approx(scipy.stats.sem(trial.hidden.values[:, *worst]))
    assert row.z_rms == pytest.approx(np.sqrt(np.mean(z**2)))
    assert row.relative_error == pytest.approx(wf.relative_error(theory.hidden, trial.hidden.mean("replicate")))
    assert (row.n_entries, row.n_replicates) == (9, 30)
    assert not table["output"].agrees
    assert not table.agrees
    with pytest.raises(KeyError, match="compared: hidden, output"):
        table["draw"]


def test_the_limit_counts_the_entries_of_all_rows(pair):
    table = wf.compare(*pair)
    assert {row.limit for row in table} == {student_limit(30, 9 + 1, 0.5e-6)}, "half of alpha is for the norms"
    assert "Bonferroni over 10 entries and over 2 norms" in str(table)
    assert wf.compare(*pair, quantities="output")["output"].limit == student_limit(30, 1, 0.5e-6)


def test_the_theory_has_a_standard_error_of_its_own(pair):
    theory, trial = pair
    plain = wf.compare(theory, trial)
    assert not plain["output"].agrees
    errors = {"hidden": np.linspace(0.0, 1.0, 9).reshape(3, 3), "output": np.array([[0.3]])}
    fields = {name: (theory.data[name].dims, theory.data[name].values) for name in errors}
    fields |= {f"{name}_stderr": (theory.data[name].dims, error) for name, error in errors.items()}
    estimated = solution(fields)
    table = wf.compare(estimated, trial, resolution=2.0)
    assert [row.quantity for row in table] == ["hidden", "output"]
    sem = scipy.stats.sem(trial.hidden.values, axis=0)
    z = (trial.hidden.values.mean(axis=0) - theory.hidden.values) / np.hypot(sem, errors["hidden"])
    assert table["hidden"].z_rms == pytest.approx(np.sqrt(np.mean(z**2)))
    assert table["output"].stderr == pytest.approx(np.hypot(plain["output"].stderr, 0.3))
    assert table["output"].agrees
    turned = solution(fields | {"hidden_stderr": (("state_", "state"), errors["hidden"].T)})
    assert wf.compare(turned, trial, resolution=2.0)["hidden"] == table["hidden"]


def test_known_standard_errors_decide_without_replicates():
    def estimate(value, error):
        return solution(
            {"loss": (("step",), np.array([value, 1.0])), "loss_stderr": (("step",), np.array([error, 0.0]))}
        )

    row = wf.compare(estimate(2.0, 0.3), estimate(2.4, 0.4), resolution=2.0)["loss"]
    assert (row.z, row.stderr, row.n_replicates) == (pytest.approx(0.8), pytest.approx(0.5), 0)
    assert row.limit == pytest.approx(scipy.stats.norm.isf(1e-6 / 8))
    assert row.agrees and row.resolution == pytest.approx(scipy.stats.norm.isf(1e-6 / 4) * 0.5 / 5**0.5)
    exact = solution({"loss": (("step",), np.array([2.0, 1.0]))})
    assert not wf.compare(exact, estimate(4.4, 0.4)).agrees
    assert not wf.compare(estimate(4.4, 0.4), exact).agrees
    assert "limit: normal" in str(wf.compare(exact, estimate(2.0, 0.4)))
    assert wf.compare(exact, estimate(4.4, 0.0)).agrees is None, "an error of zero everywhere is no error estimate"


def off_by(size, error=None, stderr=None, n=None):
    """A loss that is ``size`` off at its second entry, with the errors that it states; replicates with ``n``."""
    value = np.array([1.0, 2.0 + size])
    if n is not None:
        return solution({"loss": (("replicate", "step"), value + 0.1 * np.random.default_rng(10).normal(size=(n, 2)))})
    stated = {"loss_error": error, "loss_stderr": stderr}
    fields = {name: (("step",), np.array([0.0, e])) for name, e in stated.items() if e is not None}
    return solution({"loss": (("step",), value)} | fields)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_deterministic_error_decides_between_theories(swapped):
    """What an error covers agrees, however small the rest; what it does not cover is infinitely unlikely."""
    turn = (lambda *pair: pair[::-1]) if swapped else (lambda *pair: pair)
    covered = wf.compare(*turn(off_by(0.0), off_by(0.3, error=0.31)), resolution=0.2)["loss"]
    assert (covered.agrees, covered.z, covered.error, covered.n_entries) == (True, 0.0, 0.31, 2)
    assert dict(covered.index) == {"step": 1}, "the largest difference is shown where all are covered"
    missed = wf.compare(*turn(off_by(0.0), off_by(0.3, error=0.29)))["loss"]
    assert missed.agrees is False and np.isinf(missed.z)
    assert wf.compare(off_by(0.0, error=0.2), off_by(0.3, error=0.15), resolution=0.2).agrees, (
        "the errors of both sides add up"
    )
    assert not wf.compare(off_by(0.0, error=0.2), off_by(0.3, error=0.05)).agrees
    assert wf.compare(off_by(0.0), off_by(0.3, error=0.0)).agrees is None


def test_chance_and_deterministic_errors_are_both_seen():
    """z = (|difference| − error)/standard error."""
    row = wf.compare(off_by(0.0, error=0.1, stderr=0.03), off_by(0.3, error=0.05, stderr=0.04), resolution=0.3)["loss"]
    assert (row.z, row.stderr, row.error) == (pytest.approx(3.0), pytest.approx(0.05), pytest.approx(0.15))
    assert row.agrees and "(± 0.15)" in str(wf.compare(off_by(0.0, error=0.1, stderr=0.03), off_by(0.3, error=0.05)))
    assert not wf.compare(off_by(0.0, error=0.1, stderr=0.03), off_by(0.3, stderr=0.01)).agrees


def test_a_theory_with_an_error_meets_replicates():
    trial = off_by(0.2, n=400)
    assert not wf.compare(off_by(0.0), trial).agrees
    assert wf.compare(off_by(0.0, error=0.2), trial, resolution=0.2).agrees
    assert not wf.compare(off_by(0.0, error=0.1), trial).agrees, (
        "an error half as large as the difference does not hide it"
    )
    mean = trial.loss.values.mean(axis=0)[1] - 2.0
    row = wf.compare(off_by(0.0, error=0.1), trial)["loss"]
    assert row.z == pytest.approx((mean - 0.1) / scipy.stats.sem(trial.loss.values[:, 1]))
    single = solution({"loss": (("replicate", "step"), np.array([[1.0, 2.2]]))})
    assert wf.compare(off_by(0.0, error=0.5), single).agrees is None, "one network says nothing about its chance"


def test_errors_are_no_quantities_of_their_own():
    """An error of something else is one."""
    fields = {"rate": ((), 1.0), "rate_error": ((), 0.1), "test_error": ((), 0.3)}
    table = wf.compare(solution(fields), solution(fields | {"rate_error": ((), 0.2)}))
    assert [row.quantity for row in table] == ["rate", "test_error"]


def test_unequal_widths_are_compared_at_equal_states():
    rng = np.random.default_rng(9)
    pairs, n = ("state", "state_", "sample", "sample_"), 40
    hidden = 1.0 + rng.random((3, 3, 2, 2))
    diagonal = np.einsum("aaij->aij", hidden)
    theory = solution({"hidden": (pairs, hidden), "hidden_stderr": (pairs, np.full(hidden.shape, 1e-3))})
    assert equal_states(theory.hidden).values.tolist() == diagonal.tolist()
    dims = ("replicate", "state", "sample", "sample_")
    trial = solution({"hidden_diagonal": (dims, diagonal + 0.1 * rng.normal(size=(n, 3, 2, 2)))})
    row = wf.compare(theory, trial)["hidden (equal states)"]
    assert row.agrees and row.n_entries == 12
    assert dict(row.index).keys() == {"state", "sample", "sample_"}
    assert wf.compare(theory, trial, quantities="hidden").rows == (row,)
    wrong = solution({"hidden_diagonal": (dims, 1.2 * trial.hidden_diagonal.values)})
    assert not wf.compare(theory, wrong).agrees


def test_a_simulation_of_unequal_widths_meets_its_theory():
    widths, task, wanted = (1.0, 0.5, 2.0), wf.Task(np.eye(2)), ("hidden", "feature", "output")
    net = wf.DNN(3, "relu", widths=widths, bias_variance=0.1)
    trial = wf.simulate.prior(net, task, width=200, replicates=100, seed=0)
    table = wf.compare(wf.prior(net, task, quantities=wanted), trial)
    assert {row.quantity for row in table} == {"hidden (equal states)", "feature (equal states)", "output"}
    assert False not in [row.agrees for row in table] and {row.n_replicates for row in table} == {100}
    other = wf.DNN(3, "relu", widths=widths, bias_variance=0.1, weight_variance=1.5)
    wrong = wf.compare(wf.prior(other, task, quantities=wanted), trial, same_question=False)
    assert wrong.agrees is False and wrong.verdict == "disagrees"


def test_comparison_prints_aligned_and_survives_json(pair):
    table = wf.compare(*pair)
    lines = str(table).splitlines()
    assert len(lines) == 5
    assert " ".join(lines[0].split()) == "quantity at theory simulation z (limit) rms z rel. error resolution verdict"
    assert [line.rfind(" ") for line in lines[2:4]] == [lines[0].rfind(" ")] * 2 and lines[3].endswith("disagrees")
    assert "30 replicates" in lines[-1]
    assert table._repr_html_().count("<tr>") == 3
    assert json.loads(json.dumps(table.to_dict(), allow_nan=False)) == table.to_dict()
    assert table.to_dict()["rows"][0]["index"].keys() == {"state", "state_"}


def test_infinite_scores_stay_json(pair):
    theory, _ = pair
    fixed = solution({"output": (("replicate", "sample", "sample_"), np.full((4, 1, 1), 3.0))})
    row = wf.compare(theory, fixed).to_dict()["rows"][0]
    assert row["z"] == "inf"
    assert row["agrees"] is False
    json.dumps(row, allow_nan=False)


def test_two_theories_are_compared_by_relative_error_alone(pair):
    theory, _ = pair
    other = solution({"hidden": (("state_", "state"), 1.01 * theory.hidden.values.T)})
    table = wf.compare(theory, other)
    assert table["hidden"].relative_error == pytest.approx(0.01)
    assert table["hidden"].z is None
    assert table.agrees is None
    assert "relative errors only" in str(table)
    assert isinstance(table, Comparison)


def test_dims_are_matched_by_name(pair):
    theory, trial = pair
    moved = solution({"hidden": (("state_", "replicate", "state"), trial.hidden.values.transpose(2, 0, 1))})
    assert wf.compare(theory, moved) == wf.compare(theory, trial, quantities="hidden")


def test_what_cannot_be_compared_is_named(pair):
    theory, trial = pair
    with pytest.raises(ValueError, match="hidden: `state` has 3 entries in the first and 2"):
        wf.compare(theory, solution({"hidden": (("replicate", "state", "state_"), np.ones((4, 2, 3)))}))
    with pytest.raises(ValueError, match="hidden: the dims differ"):
        wf.compare(theory, solution({"hidden": (("replicate", "state", "sample"), np.ones((4, 3, 3)))}))
    with pytest.raises(ValueError, match="coordinate `state` differs"):
        judge("hidden", theory.hidden, trial.hidden.assign_coords(state=[1, 2, 3]))
    with pytest.raises(ValueError, match="theory comes first"):
        wf.compare(trial, theory)
    with pytest.raises(ValueError, match="no quantity in common"):
        wf.compare(theory, solution({"loss": (("step",), np.ones(2))}))
    with pytest.raises(ValueError, match="'hidden', 'output', got 'ntk'"):
        wf.compare(theory, trial, quantities="ntk")
    with pytest.raises(ValueError, match="dims differ"):
        wf.relative_error(theory.hidden, xr.DataArray(np.ones((3, 3)), dims=("a", "b")))


# what is rejected, what would have been, and what nobody can say


def as_trial(samples, **options):
    """A simulation with the field y (replicate, entry), of networks of depth 3."""
    certificate = Certificate("simulate.prior", {"lost": Check(0.0, 0.0)}, options=options)
    return make_solution({"y": (("replicate", "entry"), samples)}, certificate, wf.DNN(depth=3), None)


def as_theory(values):
    return solution({"y": (("entry",), np.asarray(values, dtype=float))})


@pytest.mark.parametrize("n", [2, 5, 30])
@pytest.mark.parametrize("rank", [1, 3, 40])
def test_the_norm_is_rejected_as_often_as_alpha_says(n, rank):
    """Entries that are copies of one another, or of three, or independent: 400 right theories each."""
    rng = np.random.default_rng(n + rank)
    mixing = rng.normal(size=(rank, 40))
    p = np.array([norm_p(rng.normal(size=(n, rank)) @ mixing) for _ in range(400)])
    for alpha in (0.05, 0.2):
        assert scipy.stats.binom.sf(np.sum(p < alpha) - 1, 400, alpha) > 1e-4
    assert np.mean(p < 0.2) > 0.08, "and not far less often"


def test_one_entry_is_students_test():
    rng = np.random.default_rng(0)
    for n, shift in ((2, 30.0), (5, 8.0), (20, 2.0), (20, 0.1)):
        samples = rng.normal(size=(n, 1)) + shift
        exact = scipy.stats.ttest_1samp(samples[:, 0], 0.0).pvalue
        assert exact <= norm_p(samples) <= 1.25 * exact or exact > 0.3


def test_real_networks_reject_their_own_theory_as_often_as_alpha_says():
    """Kernels of 1000 networks in trials of five, against the mean of 20000 others; a third more variance is seen at once."""
    task, net = wf.Task(np.random.default_rng(0).normal(size=(4, 3))), wf.DNN(2, "tanh")
    many = wf.simulate.prior(net, task, width=100, replicates=20000, seed=1, quantities=("hidden", "output")).data
    trials = wf.simulate.prior(net, task, width=100, replicates=500, seed=2, quantities=("hidden", "output")).data
    groups = [trials.isel(replicate=slice(i, i + 5)) for i in range(0, 500, 5)]

    def rejected(factor):
        pairs = [[Pair(name, factor * many[name].mean("replicate"), group[name]) for name in group] for group in groups]
        return sum(judge_all(one, alpha=0.05).agrees is False for one in pairs)

    assert scipy.stats.binom.sf(rejected(1.0) - 1, 100, 0.05) > 1e-4
    assert rejected(1.33) > 50


@pytest.mark.parametrize("rank", [1, 30])
def test_the_resolution_is_what_is_rejected(rank):
    """Errors of a tenth above the resolution, however they are spread, and none of a tenth below along the scatter."""
    rng = np.random.default_rng(rank)
    theory = 3.0 + rng.random(30)
    scatter = 0.2 * rng.normal(size=(6, rank)) @ rng.normal(size=(rank, 30))
    scatter -= scatter.mean(axis=0)
    row = wf.compare(as_theory(theory), as_trial(theory + scatter))["y"]
    worst = np.linalg.svd(scatter)[2][0]
    for direction in (worst, theory, rng.normal(size=30), np.eye(30)[0]):
        error = direction / np.linalg.norm(direction) * row.resolution * np.linalg.norm(theory)
        assert wf.compare(as_theory(theory), as_trial(theory + scatter + 1.1 * error)).agrees is False
    less = 0.9 * worst * row.resolution * np.linalg.norm(theory)
    assert wf.compare(as_theory(theory), as_trial(theory + scatter + less)).agrees is None


def test_ten_percent_is_seen_where_the_resolution_says_so():
    rng = np.random.default_rng(11)
    theory = 1.0 + rng.random(50)
    for seed in range(20):
        samples = theory * (1 + 0.1 * np.random.default_rng(seed).normal(size=(40, 50)))
        right, wrong = (wf.compare(as_theory(f * theory), as_trial(samples))["y"] for f in (1.0, 1.1))
        assert right.agrees and right.resolution < 0.1, "agreement that means something"
        assert wrong.verdict == "disagrees"


def test_few_networks_see_a_gross_error_and_vouch_for_nothing():
    task = wf.Task(np.random.default_rng(0).normal(size=(4, 3)))
    wrong, net = wf.DNN(2, "relu", weight_variance=4.0), wf.DNN(2, "tanh")
    five, two = (wf.simulate.prior(net, task, width=200, replicates=n, seed=0) for n in (5, 2))
    gross = wf.compare(wf.prior(wrong, task), five, same_question=False)
    assert {row.verdict for row in gross} == {"disagrees"} and gross["output"].relative_error > 0.85
    for table in (wf.compare(wf.prior(net, task), five), wf.compare(wf.prior(wrong, task), two, same_question=False)):
        assert table.agrees is None and table.verdict == "undecided"
        assert all(row.resolution > 1 for row in table)
        assert "an error of 0.1 would not have been either; ask for about" in str(table)


def test_what_finite_networks_may_differ_by_is_no_failure():
    """A difference of 2 % that is resolved: within 5·3/300 = 5 % at one width, beyond it at width 3000 and at two widths."""
    rng = np.random.default_rng(12)
    theory, samples = np.ones(4), 1.02 + 0.01 * rng.normal(size=(100, 4))
    row = wf.compare(as_theory(theory), as_trial(samples, width=300))["y"]
    assert row.agrees is None and abs(row.z) > row.limit
    assert "resolved, but no more than finite networks may differ (0.05) at one width; ask a second one" in row.reason
    assert wf.compare(as_theory(theory), as_trial(samples, width=3000)).agrees is False
    assert wf.compare(as_theory(theory), as_trial(samples)).agrees is False, "no width, no allowance"
    assert wf.compare(as_theory(theory), as_trial(samples, dimension=300))["y"].reason.endswith("ask a larger one")
    assert wf.compare(as_theory(theory), as_trial(samples, wide_width=300, narrow_width=150)).agrees is False
    shifted = solution({"y": (("entry",), theory), "y_shift": (("entry",), np.full(4, 0.02))})
    assert wf.compare(shifted, as_trial(samples, width=300)).agrees, "the predicted correction"
    assert wf.compare(as_theory(1.5 * theory), as_trial(samples, width=300)).agrees is False, "beyond any such offset"


def test_two_widths_decide():
    """relu readouts of networks have no 1/n offset of the mean, their fourth moments do: kernel_variance · n."""
    task, net = wf.Task(np.eye(2)), wf.DNN(2, "tanh", weight_variance=2.0)
    narrow, wide = (wf.simulate.prior(net, task, width=n, replicates=400, seed=n) for n in (50, 100))
    theory = wf.prior(net, task)
    table = wf.compare(theory, (narrow, wide))
    assert table.agrees and table.rows == wf.compare(theory, wf.simulate.extrapolate(wide, narrow)).rows
    assert table.rows == wf.compare(theory, [wide, narrow]).rows
    near = wf.prior(wf.DNN(2, "tanh", weight_variance=2.6), task)
    assert wf.compare(near, (narrow, wide), same_question=False).agrees is False


TRAINED = {"training": wf.Training(0.1, 3), "task": wf.Task(np.eye(2), np.ones(2))}


def asked(network=None, theory="fake", options=None, **nouns):
    certificate = Certificate(theory, {"residual": Check(0.0, 1.0)}, options=options or {})
    nouns = TRAINED | nouns
    return make_solution({"y": (("step",), np.ones(3))}, certificate, network or wf.DNN(2), **nouns)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (asked(wf.DNN(2, "tanh")), "`activation` of the network differs (relu and tanh)"),
        (asked(wf.DNN(3)), "`depth` of the network differs (2 and 3)"),
        (asked(task=wf.Task(np.eye(2), -np.ones(2))), "`y` of the task differs"),
        (asked(task=None), "task differs (the second has none)"),
        (asked(training=wf.Training(0.2, 3)), "`rate` of the training differs (0.1 and 0.2)"),
        (asked(training=wf.Training([0.1, 0.2, 0.3], 3)), "`rate` of the training differs (0.1 and [0.1 0.2 0.3])"),
        (asked(options={"temperature": 0.2}), "`temperature` differs (0.1 and 0.2)"),
    ],
)
def test_different_questions_are_named(other, message):
    one = asked(options={"temperature": 0.1})
    with pytest.raises(ValueError, match=re.escape(f"different questions: {message}")):
        wf.compare(one, other)
    assert wf.compare(one, other, same_question=False)["y"].relative_error == 0.0


def test_a_question_from_a_file_is_the_same(tmp_path):
    task, net = wf.Task(np.eye(2)), wf.DNN(2, wf.Activation(lambda z: z * abs(z), breaks=(0.0,), name="own"))
    one = wf.simulate.prior(net, task, width=10, replicates=3, seed=0)
    one.save(tmp_path / "one.nc")
    assert wf.compare(wf.prior(net, task), wf.load(tmp_path / "one.nc")).agrees is not False


def test_a_theory_that_is_zero_has_no_relative_error():
    rng = np.random.default_rng(13)
    row = wf.compare(as_theory(np.zeros(4)), as_trial(rng.normal(size=(50, 4))))["y"]
    assert row.relative_error is None and row.resolution is None and row.verdict == "undecided"
    assert "inf" not in str(wf.compare(as_theory(np.zeros(4)), as_trial(rng.normal(size=(50, 4)))))
    assert wf.compare(as_theory(np.zeros(4)), as_trial(5 + rng.normal(size=(50, 4)))).agrees is False
    assert wf.compare(as_theory(np.zeros(4)), as_trial(np.zeros((5, 4)))).agrees


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"theory": np.ones(3)}, "`theory` must be a Solution, got ndarray"),
        ({"theory": None}, "`theory` must be a Solution, got NoneType"),
        ({"trial": np.ones((3, 3))}, "`trial` must be a Solution, got ndarray"),
        ({"trial": ()}, "`trial` must be a Solution, or two simulations"),
        ({"trial": (1, 2)}, "`trial` must be a Solution, or two simulations"),
        ({"trial": "wide"}, "`trial` must be a Solution, or two simulations"),
        *[({"alpha": bad}, "`alpha` must") for bad in (0, 1, 1.0, -0.1, np.nan, None, "x", True, [0.1], 1j)],
        *[({"resolution": bad}, "`resolution` must") for bad in (0, -1.0, np.nan, np.inf, None, "x", True, [0.1], 1j)],
        *[({"quantities": bad}, "`quantities` must") for bad in (5, (), [], [3], "ntk", [["y"]], 1.5, [None])],
        *[({"same_question": bad}, "`same_question` must be True or False") for bad in (None, 1, "no")],
    ],
)
def test_bad_input_of_compare(given, message):
    arguments = {"theory": as_theory(np.ones(3)), "trial": as_trial(np.ones((4, 3)))} | given
    with pytest.raises(ValueError, match=re.escape(message)):
        wf.compare(arguments.pop("theory"), arguments.pop("trial"), **arguments)


def test_infinite_numbers_have_no_difference():
    for theory, trial in ((np.array([1.0, np.inf]), np.ones((3, 2))), (np.ones(2), np.full((3, 2), np.inf))):
        with pytest.raises(ValueError, match="holds infinite numbers"):
            wf.compare(as_theory(theory), as_trial(trial))


# options of the measures

NO_NUMBERS = (
    None,
    "x",
    np.nan,
    [1.0, np.nan],
    [np.inf, 1.0],
    1j,
    [],
    [[1, 2], [3]],
    np.array([1, None], dtype=object),
    {"a": 1},
)
EYE, DRAWS = np.eye(3), np.arange(6.0).reshape(3, 2)
MEASURES = {
    "alignment": {"kernel": EYE, "other": EYE}, "cka": {"kernel": EYE, "other": EYE},
    "mmd2": {"samples": DRAWS, "other": DRAWS + 1}, "relative_error": {"a": [1.0, 2.0], "b": [1.0, 2.0]},
    "zscore": {"theory": [1.0, 2.0], "samples": DRAWS},
}  # fmt: skip
BAD_MEASURES = [
    *[(call, name, bad) for call, given in MEASURES.items() for name in given for bad in NO_NUMBERS],
    *[("mmd2", "length", bad) for bad in (0, -1.0, np.nan, np.inf, None, "x", [0.5], 1j, True, 5e-324, 1e-200, 1e200)],
    *[("mmd2", "unbiased", bad) for bad in (None, 1, "no", [], np.ones(2))],
    *[("mmd2", "progress", bad) for bad in (1, "no", [], np.ones(2))],
]


@pytest.mark.parametrize(("call", "name", "bad"), BAD_MEASURES)
def test_what_is_no_number_is_named(call, name, bad):
    with pytest.raises(ValueError, match=f"`{name}`"):
        getattr(wf, call)(**MEASURES[call] | {name: bad})


@pytest.mark.parametrize("call", MEASURES)
def test_measures_reject_tracers(call):
    for name in MEASURES[call]:
        with pytest.raises(ValueError, match=f"`{name}` is a JAX tracer"):
            jax.jit(lambda v, name=name: getattr(wf, call)(**MEASURES[call] | {name: v}))(np.ones(2))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_measures_know_no_units(scale):
    a, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[2.5, 1.0], [1.0, 3.0]])
    assert wf.relative_error(scale * a, scale * b) == pytest.approx(0.5 / 15**0.5)
    assert wf.alignment(scale * a, b) == pytest.approx(wf.alignment(a, b))


def test_many_draws_show_how_far_they_are(capsys):
    x = np.random.default_rng(0).normal(size=(1500, 1))
    shown = wf.mmd2(x, x + 1, progress=True)
    assert re.search(r"\d+/\d+", capsys.readouterr().err)
    assert wf.mmd2(x, x + 1) == shown and capsys.readouterr().err == ""


def test_replicates_that_do_not_fit_are_refused(monkeypatch):
    task = wf.Task(np.eye(2))
    theory, trial = (
        wf.prior(wf.DNN(2, "relu"), task),
        wf.simulate.prior(wf.DNN(2, "relu"), task, width=5, replicates=100, seed=0),
    )
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=13_000))
    with pytest.raises(MemoryError, match="`trial` need 38.4 kB, but only 10.4 kB .*smaller `quantities`"):
        wf.compare(theory, trial)
    assert wf.compare(theory, trial, quantities="output").rows[0].quantity == "output"
