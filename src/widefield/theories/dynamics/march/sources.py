r"""What a source does to the paths of one site: slopes where the activation is smooth, kicks where it has kinks.

Slopes, Eq. (dynamics.18). At a kink :math:`\varphi''` is a delta function, which paths do not see. There sources have a size,
Eq. (dynamics.19): a path is followed with and without it. Neurons whose h is within ε of the kink cross it, so that averages are
right to the order of ε against the distance that neurons move in one step: what a neuron does near h = 0 depends on
which steps it has been on either side. Half of the paths are kicked up and half down.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from widefield.theories.dynamics.march.step import Function

KICK = 1 / 8  # of the distance that h moves in a step, or of z; and twice that, to extrapolate
CROSSINGS = 4  # a kick sends at least so many paths of a batch over a kink


class Paths(NamedTuple):
    """What moves of φ or g on every path where h (and z) do, after sources at row s of the ``states`` of a site.

    Moves are (sample, source, source's state, source's sample, S).
    """

    n_paths: int
    feature: Callable[..., np.ndarray]  # δφ of state k at row t: (s, t, states, k, δh)
    gradient: Callable[..., np.ndarray]  # δg of channel c: (s, t, states, k, c, δh, δz)


def slopes(slope: np.ndarray, curve: np.ndarray) -> Paths:
    """Infinitesimal sources, from φ' (step, state, sample, S) and φ''z (channel, step, state, sample, S)."""
    return Paths(
        slope.shape[-1],
        lambda s, t, states, k, h: _spread(slope[t, k]) * h,
        lambda s, t, states, k, c, h, z: _spread(slope[t, k]) * z + _spread(curve[c, t, k]) * h,
    )


def smooth(activation: Function, h: np.ndarray, z: np.ndarray) -> Paths:
    """Slopes of paths h (step, state, sample, S) and z (channel, step, state, sample, S)."""
    return slopes(np.asarray(_first(activation, h)), np.asarray(_second(activation, h)) * z)


def kicks(activation: Function, h: np.ndarray, z: np.ndarray, share: float) -> Paths:
    """Sources of ``share`` of what h moves in the shorter step beside theirs, or of z, for activations with kinks."""
    moved, pull = np.maximum(_moved(h), _smallest(h) / KICK), np.sqrt(np.mean(z**2, axis=(3, 4)))
    sizes = share * np.concatenate([pull, moved[None]])  # of r of every channel and of u: (channel + 1, step, state)
    sizes = np.where(sizes > 0, sizes, 1.0)
    signs = np.where(np.random.default_rng(0).random(h.shape[-1]) < 0.5, 1.0, -1.0)
    size = lambda s, states: (sizes[:, s, list(states), None, None] * signs)[None]  # noqa: E731

    def feature(s, t, states, k, dh):
        return np.asarray(_kicked_feature(activation, size(s, states), _spread(h[t, k]), dh))

    def gradient(s, t, states, k, c, dh, dz):
        return np.asarray(_kicked_gradient(activation, size(s, states), _spread(h[t, k]), _spread(z[c, t, k]), dh, dz))

    return Paths(len(signs), feature, gradient)


def paths_needed(h: np.ndarray, rows: tuple[int, ...]) -> float:
    """How many paths make kicks at these rows as small as what h moves there asks for."""
    with np.errstate(divide="ignore"):
        needed = h.shape[-1] * _smallest(h) / (KICK * _moved(h))
    return float(needed[list(rows)].max())


def _moved(h: np.ndarray) -> np.ndarray:
    """What h moves in the shorter of the steps before and after (step, state); h itself where there is no step."""
    if len(h) == 1:
        return np.sqrt(np.mean(h**2, axis=(2, 3)))
    steps = np.sqrt(np.mean(np.diff(h, axis=0) ** 2, axis=(2, 3)))
    return np.minimum(np.concatenate([steps[:1], steps]), np.concatenate([steps, steps[-1:]]))


def _smallest(h: np.ndarray) -> np.ndarray:
    """Kicks (step, state) that send a few paths over a kink, were h normal; no smaller ones are made."""
    return CROSSINGS * np.sqrt(2 * np.pi * np.mean(h**2, axis=(2, 3))) / h.shape[-1]


def _spread(value: np.ndarray) -> np.ndarray:
    """(sample, S) against (sample, source, source's state, source's sample, S)."""
    return value[:, None, None, None]


@partial(jax.jit, static_argnums=0)
def _first(function: Function, h: jax.Array) -> jax.Array:
    return jax.jvp(function, (h,), (jnp.ones_like(h),))[1]


@partial(jax.jit, static_argnums=0)
def _second(function: Function, h: jax.Array) -> jax.Array:
    return jax.jvp(lambda x: _first(function, x), (h,), (jnp.ones_like(h),))[1]


@partial(jax.jit, static_argnums=0)
def _kicked_feature(function: Function, size, h0, h) -> jax.Array:
    return (function(h0 + size * h) - function(h0)) / size


@partial(jax.jit, static_argnums=0)
def _kicked_gradient(function: Function, size, h0, z0, h, z) -> jax.Array:
    return (_first(function, h0 + size * h) * (z0 + size * z) - _first(function, h0) * z0) / size
