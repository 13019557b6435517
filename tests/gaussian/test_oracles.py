"""Gaussian averages against the table of exact values: *accurate* and *honest* are separate claims.

The values and the scale √(⟨φ⁽ⁱ⁾(a)²⟩⟨φ⁽ʲ⁾(b)²⟩) come from `oracle.py` by way of `make_table.py`.
"""

import json
from functools import cache
from itertools import groupby, product
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.gaussian import expectation
from widefield.question.activation import leaky_relu, monomial

from . import oracle

mp = oracle.mp
ACCURACY = 1e-10
TABLE_ERROR = mp.mpf("1e-22")  # of the table itself, relative to the scale
UNDERFLOW = mp.mpf(2) ** -1022  # below it a float64 loses digits

ACTIVATIONS = {
    "leaky_relu(0.2)": leaky_relu(0.2),
    "monomial(3)": monomial(3),
    "monomial(6)": monomial(6),
    "user: clipped ramp": wf.Activation(lambda x: jnp.clip(x, -1, 1), breaks=(-1, 1)),
    "user: step": wf.Activation(lambda x: jnp.where(x > 0.3, 1.0, -1.0), breaks=(0.3,)),
    "user: shifted relu": wf.Activation(lambda x: jnp.maximum(x - 0.5, 0), breaks=(0.5,)),
    "user: shifted tanh": wf.Activation(lambda x: jnp.tanh(x - 0.7)),
    "user: sin(3x)": wf.Activation(lambda x: jnp.sin(3 * x)),
}
UNDECLARED = {
    "relu": wf.Activation(lambda x: jnp.maximum(x, 0)),
    "user: clipped ramp": wf.Activation(lambda x: jnp.clip(x, -1, 1)),
    "user: step": wf.Activation(lambda x: jnp.where(x > 0.3, 1.0, -1.0)),
}

CURVED = ((2, 0), (2, 1), (2, 2), (3, 1), (4, 0))
SMOOTH = ("tanh", "sigmoid", "softplus", "silu", "user: shifted tanh")


def key_of(row):
    return row[0], tuple(row[1])


ROWS = json.loads(Path(__file__).with_name("table.json").read_text())["rows"]
TABLE = {key: list(rows) for key, rows in groupby(sorted(ROWS, key=key_of), key=key_of)}
NAMED = [key for key in TABLE if not key[0].startswith("user")]
USERS = [key for key in TABLE if key[0].startswith("user")]
PROMISED = [key for key in NAMED if key[1] in ((0, 0), (1, 1))] + list(product(SMOOTH, CURVED))
BOUNDED = [key for key in NAMED if TABLE[key][0][6] is not None]


def columns(rows):
    """Variances and covariances as float64 arrays, exact values and scales as lists of high precision."""
    inputs = np.array([row[2:5] for row in rows]).T
    exact = [mp.mpf(row[5]) for row in rows]
    scales = [abs(x) if row[6] is None else mp.mpf(row[6]) for row, x in zip(rows, exact, strict=True)]  # None: a delta
    return *inputs, exact, scales


@cache
def answer(name, orders):
    q, q_, c, *_ = columns(TABLE[name, orders])
    return expectation(ACTIVATIONS.get(name, name), q, q_, c, orders)


@cache
def answers(activation, name, orders):
    """Row by row, as (value, error), or None where the library refuses; all at once where it refuses none."""
    try:
        result = answer(name, orders) if activation is ACTIVATIONS.get(name) else None
    except wf.SolveError:
        result = None
    if result is not None:
        return list(zip(result.value.tolist(), result.error.tolist(), strict=True))
    found = []
    for q, q_, c in zip(*columns(TABLE[name, orders])[:3], strict=True):
        try:
            result = expectation(activation, q, q_, c, orders)
            found.append((float(result.value), float(result.error)))
        except wf.SolveError:
            found.append(None)
    return found


def wrong(rows, value, error, allowed):
    """Sentences on the rows whose true error is more than ``allowed(error, scale)``."""
    *_, exact, scales = columns(rows)
    lines = []
    for row, x, s, v, e in zip(rows, exact, scales, value, error, strict=True):
        off = abs(mp.mpf(float(v)) - x) if np.isfinite(v) else mp.inf
        if not off <= allowed(mp.mpf(float(e)), s) + TABLE_ERROR * s + UNDERFLOW:
            scaled = [mp.nstr(y / s if s else y, 3) for y in (off, mp.mpf(float(e)))]
            lines.append(f"q={row[2]:g} q'={row[3]:g} c={row[4]!r}: off by {scaled[0]}, error {scaled[1]} of the scale")
    return lines


def label(key):
    return f"{key[0]}-{key[1][0]}{key[1][1]}"


@pytest.mark.parametrize("key", PROMISED, ids=label)
def test_averages_are_accurate(key):
    result = answer(*key)
    lines = wrong(TABLE[key], result.value, result.error, lambda _, scale: ACCURACY * scale)
    assert not lines, "\n".join([result.method, *lines])


@pytest.mark.parametrize("key", NAMED, ids=label)
def test_named_activations_are_honest(key):
    result = answer(*key)
    assert np.isfinite(result.error).all() and (result.error >= 0).all()
    lines = wrong(TABLE[key], result.value, result.error, lambda error, _: error)
    assert not lines, "\n".join([result.method, *lines])


@pytest.mark.parametrize("key", BOUNDED, ids=label)
def test_the_error_estimate_is_as_small_as_asked(key):
    result = answer(*key)
    *_, scales = columns(TABLE[key])
    assert (result.error <= ACCURACY * np.array([float(s) for s in scales]) * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    "key", [k if k[1] == (0, 0) else pytest.param(k, marks=pytest.mark.full) for k in USERS], ids=label
)
def test_user_functions_are_honest_or_refused(key):
    found = answers(ACTIVATIONS[key[0]], *key)
    kept = [(row, *pair) for row, pair in zip(TABLE[key], found, strict=True) if pair is not None]
    rows, value, error = zip(*kept, strict=True) if kept else ((), (), ())
    lines = wrong(rows, value, error, lambda error, _: error)
    assert not lines, "\n".join(lines)
    if TABLE[key][0][6] is not None:
        *_, scales = columns(rows)
        assert all(e <= ACCURACY * s * (1 + 1e-9) for e, s in zip(error, scales, strict=True))


@pytest.mark.parametrize("key", [key for key in USERS if key[1] == (0, 0)], ids=label)
def test_user_functions_are_not_refused_up_to_variance_10(key):
    found = answers(ACTIVATIONS[key[0]], *key)
    refused = [row[2:5] for row, pair in zip(TABLE[key], found, strict=True) if pair is None and max(row[2:4]) <= 10]
    assert not refused


@pytest.mark.parametrize("name", [n if n == "relu" else pytest.param(n, marks=pytest.mark.full) for n in UNDECLARED])
def test_undeclared_kinks_are_honest_or_refused(name):
    found = answers(UNDECLARED[name], name, (0, 0))
    kept = [(row, *pair) for row, pair in zip(TABLE[name, (0, 0)], found, strict=True) if pair is not None]
    kept = [entry for entry in kept if abs(entry[0][4]) < (1 - 1e-9) * np.sqrt(entry[0][2] * entry[0][3])]  # see Limits
    rows, value, error = zip(*kept, strict=True) if kept else ((), (), ())
    lines = wrong(rows, value, error, lambda error, _: error)
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("covariance", [1e3, 0.0])
def test_overflow_is_an_error(covariance):
    with pytest.raises(OverflowError):
        expectation("exp", 1e3, 1e3, covariance)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs"])
@pytest.mark.parametrize("variance, covariance", [(1.0, 1.0), (1.0, -1.0), (3.0, 3.0), (1e-3, -1e-3)])
def test_two_delta_functions_of_one_variable_are_an_error(name, variance, covariance):
    with pytest.raises((ArithmeticError, ValueError, wf.SolveError)):
        expectation(name, variance, variance, covariance, (2, 2))


def relu_reference(orders, q, q_, c):
    """⟨δ⁽ⁱ⁻²⁾(a)φ⁽ʲ⁾(b)⟩ by differentiating the density of a times the mean of φ⁽ʲ⁾(b) given a, numerically."""
    i, j = orders
    slope, s = c / q, mp.sqrt(q_ - c * c / q)
    root = mp.sqrt(q)

    def weighted(a):
        return mp.npdf(a, 0, root) * oracle.FUNCTIONS["relu"].full_mean(j, slope * a, s)

    return (-1) ** i * mp.diff(weighted, 0, i - 2, h=mp.mpf("1e-12") * min(root, s / (abs(slope) or 1)))


@pytest.mark.parametrize("orders", [(2, 1), (3, 0), (3, 1), (4, 0)])
def test_derivatives_of_delta_functions(orders):
    """relu: φ'' is a delta function, of which two more derivatives are taken."""
    pairs = [(q, q_) for q in (1e-3, 1.0, 3.0, 1e3) for q_ in (1e-3, 1.0, 100.0)]
    rows = [(q, q_, rho * np.sqrt(q * q_)) for q, q_ in pairs for rho in (-1 + 1e-9, -0.7071, 0.0, 0.3, 0.999)]
    q, q_, c = np.array(rows).T
    result, swapped = expectation("relu", q, q_, c, orders), expectation("relu", q_, q, c, orders[::-1])
    assert (np.abs(result.value - swapped.value) <= result.error).all()
    exact = [relu_reference(orders, *map(mp.mpf, row)) for row in rows]
    off = [abs(mp.mpf(v) - x) for v, x in zip(result.value.tolist(), exact, strict=True)]
    assert all(d <= 1e-10 * abs(x) + 1e-20 for d, x in zip(off, exact, strict=True)), "accurate"
    assert all(d <= e + 1e-9 * e for d, e in zip(off, result.error.tolist(), strict=True)), "honest"


@pytest.mark.parametrize("orders, ratio", [((3, 1), 1.0), ((4, 0), 1.0), ((2, 1), 0.0), ((1, 0), 0.0)])
def test_kinked_lines_share_the_averages_of_relu(orders, ratio):
    """x·s below zero: even total orders are those of relu times (1 − s)², odd ones times 1 − s²."""
    relu = expectation("relu", 2.0, 3.0, 0.7, orders)
    for name, s in ((leaky_relu(0.2), 0.2), ("abs", -1.0)):
        factor = (1 - s) ** 2 if ratio else 1 - s**2
        other = expectation(name, 2.0, 3.0, 0.7, orders)
        assert abs(other.value - factor * relu.value) <= 4 * relu.error + other.error


# The oracle itself.


def _determinant(q, q_, c):
    return mp.sqrt(mp.mpf(q) * q_ - mp.mpf(c) ** 2)


CLOSED = {
    ("relu", (0, 0)): lambda q, q_, c: (
        (_determinant(q, q_, c) + (mp.pi - mp.atan2(_determinant(q, q_, c), c)) * c) / (2 * mp.pi)
    ),
    ("relu", (1, 1)): lambda q, q_, c: (mp.pi - mp.atan2(_determinant(q, q_, c), c)) / (2 * mp.pi),
    ("relu", (2, 0)): lambda q, q_, c: _determinant(q, q_, c) / (2 * mp.pi * q),
    ("relu", (2, 2)): lambda q, q_, c: 1 / (2 * mp.pi * _determinant(q, q_, c)),
    ("erf", (0, 0)): lambda q, q_, c: 2 / mp.pi * mp.asin(2 * c / mp.sqrt((1 + 2 * mp.mpf(q)) * (1 + 2 * mp.mpf(q_)))),
}


@pytest.mark.parametrize("key", CLOSED, ids=label)
def test_the_table_agrees_with_textbook_formulas(key):
    for row in TABLE[key]:
        q, q_, c = map(mp.mpf, row[2:5])
        if q and q_:
            s = mp.mpf(row[6] or row[5])
            assert abs(CLOSED[key](q, q_, c) - mp.mpf(row[5])) <= 1e-22 * s, row


@pytest.mark.parametrize("name", ["sin", "monomial(6)", "relu", "erf", "gelu", "tanh", "silu", "user: clipped ramp"])
def test_the_table_is_what_the_oracle_says(name):
    row = next(row for row in TABLE[name, (0, 0)] if row[2:4] == [1.0, 1.0] and 0.2 < row[4] < 0.4)
    again = oracle.expectation(name, (0, 0), *row[2:5], fine=True)
    assert abs(again - mp.mpf(row[5])) <= 1e-22 * mp.mpf(row[6])
