"""Random inputs, and labels from a teacher."""

import numpy as np

from widefield.question import checks
from widefield.question.task import Task


def gaussian(n_samples: int, dimension: int, mean: float = 0.0, seed: int = 0, n_test: int = 0) -> Task:
    r"""Independent inputs :math:`x_{\alpha i} \sim \mathcal N(\text{mean}, 1)` without labels.

    With a non-zero ``mean`` :math:`m` all pairs of inputs overlap, :math:`x_\alpha \cdot x_\beta / D \approx m^2`
    against :math:`1 + m^2` on the diagonal.
    """
    x, x_test = _inputs(n_samples, dimension, n_test, np.random.default_rng(checks.integer("seed", seed, 0)))
    mean = _real("mean", mean)
    return Task(x + mean, x_test=None if x_test is None else x_test + mean)


def rotation(n_samples: int, dimension: int, depth: int, angle: float, seed: int = 0, n_test: int = 0) -> Task:
    r"""A sequence that a recurrent teacher produces by rotating a plane.

    .. math::  y^s = V^* (W^*)^s U^* x, \qquad s = 0, \dots, \text{depth} - 1

    :math:`x \sim \mathcal N(0, 1)` enters once. :math:`U^*` (:math:`2 \times D`) has random orthonormal rows,
    :math:`W^*` rotates by ``angle`` (radians), :math:`V^* = (1, 0)`; labels are (sample, state, 1) with variance 1 at
    every state and correlation :math:`\cos((s - t)\,\text{angle})` between states.
    """
    if checks.integer("dimension", dimension, 1) < 2:
        raise ValueError(f"`dimension` must be at least 2 to hold a plane, got {dimension!r}.")
    angles = _real("angle", angle) * np.arange(checks.integer("depth", depth, 1))
    rng = np.random.default_rng(checks.integer("seed", seed, 0))
    plane = np.linalg.qr(rng.standard_normal((dimension, 2)))[0]
    x, x_test = _inputs(n_samples, dimension, n_test, rng)

    def label(inputs: np.ndarray) -> np.ndarray:
        return (inputs @ plane @ np.stack([np.cos(angles), -np.sin(angles)]))[:, :, None]

    if x_test is None:
        return Task(x, label(x))
    return Task(x, label(x), x_test=x_test, y_test=label(x_test))


def _inputs(
    n_samples: int, dimension: int, n_test: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None]:
    checks.integer("n_samples", n_samples, 1)
    checks.integer("dimension", dimension, 1)
    checks.integer("n_test", n_test, 0)
    x = rng.standard_normal((n_samples, dimension))
    return x, rng.standard_normal((n_test, dimension)) if n_test else None


def _real(name: str, value: float) -> float:
    if isinstance(value, bool) or np.ndim(value) != 0 or not isinstance(value, int | float | np.number):
        raise ValueError(f"`{name}` must be a finite number, got {value!r}.")
    if not np.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value!r}.")
    return float(value)
