"""Verdicts: a theory beside a simulation, and what the simulation would have seen."""

from widefield.compare.compare import compare, equal_states
from widefield.compare.table import HEADER, Comparison, Row, cells, text_table
from widefield.compare.verdict import Pair, judge, judge_all

__all__ = [
    "HEADER",
    "Comparison",
    "Pair",
    "Row",
    "cells",
    "compare",
    "equal_states",
    "judge",
    "judge_all",
    "text_table",
]
