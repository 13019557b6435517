"""Continuation: known roots, known folds, and what is lost on the way."""

import numpy as np
import pytest

from widefield.solvers import continuation
from widefield.solvers.continuation import Sample


def recorded(function):
    """``function`` as something to evaluate, whose solution is the list of all values so far."""
    return lambda value, start: (function(value), [*(start or []), value])


@pytest.mark.parametrize(
    ("function", "root"),
    [
        (lambda x: 2.0 - x, 2.0),
        (lambda x: np.cos(x), np.pi / 2),
        (lambda x: 1 - x**9, 1.0),
        (lambda x: np.exp(-5 * x) - np.exp(-5 * 1.3), 1.3),
        (lambda x: -np.cbrt(x - 1.7), 1.7),
    ],
)
@pytest.mark.parametrize("rtol", [1e-13, 1e-6])
def test_a_root_is_met_to_its_tolerance(function, root, rtol):
    evaluate = recorded(function)
    scan = continuation.scan(evaluate, np.geomspace(0.1, 10, 7))
    assert scan.lost == 0 and scan.bracket is not None
    before, after = scan.bracket
    assert before.value <= root <= after.value and before.number >= 0 > after.number
    crossing = continuation.crossing(evaluate, before, after, rtol=rtol)
    np.testing.assert_allclose(crossing.value, root, rtol=3 * rtol)
    assert len(crossing.solution) - len(before.solution) <= 60, "each evaluation hands its solution on"


def test_a_root_is_met_faster_than_by_halving():
    evaluate = recorded(lambda x: 2 - x**2)
    ends = (Sample(x, 2 - x**2, []) for x in (0.5, 4.0))
    assert len(continuation.crossing(evaluate, *ends, rtol=1e-13).solution) < 15


def test_none_is_not_lost():
    there_is_none = continuation.scan(recorded(lambda x: 1.0), range(1, 9))
    assert there_is_none.bracket is None and there_is_none.lost == 0 and len(there_is_none.samples) == 8
    begins_negative = continuation.scan(recorded(lambda x: -1.0), range(1, 9))
    assert begins_negative.bracket is None and begins_negative.samples[0].number < 0


def test_losses_are_counted_and_end_the_search():
    one = continuation.scan(recorded(lambda x: np.nan if x == 2 else 5.5 - x), range(1, 9))
    assert one.lost == 1 and one.bracket is not None
    beside = continuation.scan(recorded(lambda x: np.nan if x == 5 else 5.5 - x), range(1, 9))
    assert beside.lost == 1 and beside.bracket is None, "the root may lie where nothing was reached"
    gone = continuation.scan(recorded(lambda x: 1.0 if x < 3 else np.nan), range(1, 99))
    assert gone.lost == continuation.PATIENCE and len(gone.samples) == 2 + continuation.PATIENCE


def test_a_root_that_is_lost_on_the_way():
    evaluate = recorded(lambda x: np.nan if 1.5 < x < 2.5 else 2 - x)
    assert continuation.crossing(evaluate, Sample(1.0, 1.0, []), Sample(4.0, -2.0, [])) is None


def fold(value, start):
    """x² = 1 − value, the branch x > 0 by Newton's method: it ends at 1, where its slope diverges."""
    x = start
    for _ in range(60):
        x = x - (x**2 - 1 + value) / (2 * x)
    return x if abs(x**2 - 1 + value) < 1e-12 else None


def test_a_fold_is_where_the_branch_ends():
    end, solution = continuation.branch_end(fold, 0.25, np.sqrt(0.75), 1.1, limit=1e3)
    np.testing.assert_allclose(end, 1.0, rtol=1e-9)
    assert 0 <= solution < 1e-4
    assert continuation.branch_end(lambda value, start: value, 1.0, 1.0, 1.1, limit=10.0) is None
    downward, _ = continuation.branch_end(lambda v, s: v if v > 0.3 else None, 1.0, 1.0, 0.9, limit=1e-3)
    np.testing.assert_allclose(downward, 0.3, rtol=1e-9)


def test_a_branch_is_traced_from_its_neighbors():
    values = np.array([0.3, 0.6, 0.9, 1.2, 0.5])
    traced = continuation.trace(fold, values, np.sqrt(0.75))
    np.testing.assert_allclose(traced[:3], np.sqrt(1 - values[:3]), rtol=1e-12)
    assert traced[3:] == [None, None], "what has ended does not begin again"
