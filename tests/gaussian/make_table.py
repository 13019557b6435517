"""Writes ``table.json``, the reference values that the tests read: ``python make_table.py`` (half an hour).

Every twentieth row is computed a second time with finer steps and the two variables exchanged.
"""

import json
import math
import time
from fractions import Fraction
from itertools import product
from pathlib import Path

import oracle

VARIANCES = (1e-3, 0.1, 1.0, 3.0, 10.0, 100.0, 1e3)
UNEQUAL = ((1e-3, 1e3), (0.1, 10.0), (3.0, 1.0), (3.0, 100.0), (1e3, 1.0), (100.0, 1e3))
CORRELATIONS = (-1, -1 + 1e-12, -1 + 1e-6, -0.99, -0.5, 0, 1e-9, 0.3, 0.9, 0.999999, 1 - 1e-12, 1)
NULL = ((0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (10.0, 0.0, 0.0), (0.0, 1e3, 0.0))
CORE = {(1.0, rho) for rho in (-1, -1 + 1e-12, -0.5, 0, 0.3, 0.9, 1 - 1e-12, 1)}
CORE |= {(1e-3, 0.9), (10.0, 0.9), (1e3, -1 + 1e-12), (1e3, 0.9), (1e3, 1)}
ORDERS = ((0, 0), (1, 1), (2, 0), (2, 2))
HIGHER = ((1, 0), (4, 0), (3, 1))
CURVED = ((2, 0), (2, 1), (2, 2), (3, 1), (4, 0))  # more rows for the functions that go by series, up to these orders
PATH = Path(__file__).with_name("table.json")


def covariance(q: float, q_: float, rho: float) -> float:
    """ρ√(q q') as a float inside the allowed range when q, q' and it are taken as exact."""
    c = math.copysign(math.sqrt(q * q_) * abs(rho), rho)
    while Fraction(c) ** 2 > Fraction(q) * Fraction(q_):
        c = math.nextafter(c, 0.0)
    return c


def is_wanted(name: str, orders: tuple[int, int], q: float, q_: float, c: float) -> bool:
    """Whether the value is finite, defined, and not needlessly dear."""
    f = oracle.FUNCTIONS[name]
    if isinstance(f, oracle.Exponential):
        return q + q_ < 700
    if isinstance(f, oracle.Ramp):
        if max(orders) > (1 if f.jumps else 2):
            return False
        if 0 in (q, q_) and max(orders) > 0:
            return False  # a kink seen by a variable that does not vary
        singular = Fraction(c) ** 2 == Fraction(q) * Fraction(q_)
        return not (singular and all(f.deltas(k) for k in orders))
    dear = name.endswith("tanh") and min(q, q_) > 500 and 0.1 < abs(c) / q < 0.95
    return not dear or (orders in ((0, 0), (1, 1)) and name == "tanh" and c > 0.5)


def share_of(orders: tuple[int, int]) -> int:
    return 9 if orders in ((0, 0), (1, 1)) else 17 if orders in ORDERS else 47


def cases(share: int, turn: int):
    """A core shared by all functions and a different share of the rest for each (``turn``)."""
    pairs = [(v, v) for v in VARIANCES] + list(UNEQUAL)
    for n, ((q, q_), rho) in enumerate(product(pairs, CORRELATIONS)):
        core = share == 9 and q == q_ and (q, rho) in CORE
        if core or (n * 7 + turn) % share == 0:
            yield q, q_, covariance(q, q_, rho)
    if share == 9:
        yield from NULL


def check(row, name, orders, q, q_, c, scale) -> None:
    again = oracle.expectation(name, orders[::-1], q_, q, c, fine=True)
    assert abs(row - again) <= 1e-23 * (scale or abs(row)), (name, orders, q, q_, c, row, again)


def rows(name: str, orders: tuple[int, int], share: int, turn: int):
    """Lines of the table; every twentieth is checked."""
    for n, (q, q_, c) in enumerate(cases(share, turn)):
        if not is_wanted(name, orders, q, q_, c):
            continue
        value, scale = oracle.expectation(name, orders, q, q_, c), oracle.scale(name, orders, q, q_)
        if (n + turn) % 20 == 0 and max(q, q_) < 50:
            check(value, name, orders, q, q_, c, scale)
        text = [None if x is None else oracle.mp.nstr(x, 25) for x in (value, scale)]
        yield json.dumps([name, list(orders), q, q_, c, *text])


def wanted():
    """Name, orders, share and turn of every part of the table."""
    for turn, (name, orders) in enumerate(product(oracle.FUNCTIONS, ORDERS + HIGHER), 1):
        if orders not in HIGHER[1:] or not isinstance(oracle.FUNCTIONS[name], oracle.Ramp):
            yield name, orders, share_of(orders), turn
    curved = [name for name, f in oracle.FUNCTIONS.items() if isinstance(f, oracle.Sigmoidal)]
    for turn, (name, orders) in enumerate(product(curved, CURVED)):
        yield name, orders, 13, 5 * turn


def main() -> None:
    lines, start = [], time.time()
    for name, orders, share, turn in wanted():
        lines += rows(name, orders, share, turn)
        print(f"{time.time() - start:6.0f} s  {len(lines):5d} rows  {name} {orders}", flush=True)
    columns = json.dumps(["activation", "orders", "variance", "variance_", "covariance", "value", "scale"])
    PATH.write_text('{"columns": ' + columns + ',\n"rows": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
