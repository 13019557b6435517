"""Extrapolation to zero of values at h, h/2, h/4, … (Richardson): each one more removes one more power of h."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def extrapolate(values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The limit, and how much the last value changed it: an estimate of its error."""
    table = list(values)
    before = table[-1]
    for order in range(1, len(values)):
        before = table[-1]
        table = [b + (b - a) / (2**order - 1) for a, b in pairwise(table)]
    return table[0], np.abs(table[0] - before)
