"""What every figure is made with: families of questions, panels, verdicts, and the step from data to an entry."""

# ruff: noqa: F401

from matplotlib.axes import Axes

from widefield.compare import Pair, Row, equal_states, judge, judge_all
from widefield.gallery.kit.entry import Job, Pairs, Panel, Panels, cases, extrapolated, made, marks, over, sheet
from widefield.gallery.kit.families import Experiment, Family, measure, padded, pairs, rejections, tested
from widefield.gallery.kit.panels import (
    SHAPES,
    curve,
    curves,
    density,
    diagonal,
    fitted_power,
    image,
    key,
    layers,
    points,
    power_fit,
    ticks_at,
    two_times,
)
from widefield.gallery.record import Made, Work
from widefield.plot.style import COLORS, MARKERS, SERIES, band, stderr
