r"""What a source does to the paths of one site: slopes where the activation is smooth, kicks where it has kinks.

Slopes, Eq. (dynamics.18). At a kink :math:`\varphi''` is a delta function, which paths do not see. There sources have a size,
Eq. (dynamics.19): a path is followed with and without it. Neurons whose h is within ε of the kink cross it, so that averages are
right to the order of ε against the distance that neurons move in one step: what a neuron does near h = 0 depends on
which steps it has been on either side. Half of the paths are kicked up and half down.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from widefield.theories.dynamics.march.step import Function

KICK = 1 / 8  # of the distance that h moves in a step, or of z; and twice that, to extrapolate
CROSSINGS = 4  # a kick sends at least so many paths of a batch over a kink


@dataclass(frozen=True)
class Slopes:
    """Infinitesimal sources of smooth activations."""

    slope: np.ndarray  # φ' (step, state, sample, S)
    curve: np.ndarray  # φ''z (channel, step, state, sample, S)

    @property
    def n_paths(self) -> int:
        return self.slope.shape[-1]

    def feature(self, s: int, t: int, states: tuple[int, ...], k: int, h: np.ndarray) -> np.ndarray:
        """δφ of state k at row t from δh (sample, source, source's state, source's sample, S); sources are at row s."""
        return _spread(self.slope[t, k]) * h

    def gradient(self, s: int, t: int, states: tuple[int, ...], k: int, c: int, h: np.ndarray, z: np.ndarray):
        """δg of channel c likewise."""
        return _spread(self.slope[t, k]) * z + _spread(self.curve[c, t, k]) * h


@partial(jax.jit, static_argnums=0)
def _first(function: Function, h: jax.Array) -> jax.Array:
    return jax.jvp(function, (h,), (jnp.ones_like(h),))[1]


@partial(jax.jit, static_argnums=0)
def _second(function: Function, h: jax.Array) -> jax.Array:
    return jax.jvp(lambda x: _first(function, x), (h,), (jnp.ones_like(h),))[1]


def slopes(activation: Function, h: np.ndarray, z: np.ndarray) -> Slopes:
    """Of paths h (step, state, sample, S) and z (channel, step, state, sample, S)."""
    return Slopes(np.asarray(_first(activation, h)), np.asarray(_second(activation, h)) * z)


@dataclass(frozen=True)
class Kicks:
    """Sources of finite size, for activations with kinks."""

    activation: Function
    h: np.ndarray  # (step, state, sample, S)
    z: np.ndarray  # (channel, step, state, sample, S)
    sizes: np.ndarray  # of r of every channel and of u: (channel + 1, step, state)
    signs: np.ndarray  # (S,)

    @property
    def n_paths(self) -> int:
        return len(self.signs)

    def feature(self, s: int, t: int, states: tuple[int, ...], k: int, h: np.ndarray) -> np.ndarray:
        size, h0 = self._size(s, states), _spread(self.h[t, k])
        return np.asarray(_kicked_feature(self.activation, size, h0, h))

    def gradient(self, s: int, t: int, states: tuple[int, ...], k: int, c: int, h: np.ndarray, z: np.ndarray):
        size, h0, z0 = self._size(s, states), _spread(self.h[t, k]), _spread(self.z[c, t, k])
        return np.asarray(_kicked_gradient(self.activation, size, h0, z0, h, z))

    def _size(self, s: int, states: tuple[int, ...]) -> np.ndarray:
        return (self.sizes[:, s, list(states), None, None] * self.signs)[None]  # of all samples


def kicks(activation: Function, h: np.ndarray, z: np.ndarray, share: float) -> Kicks:
    """Sources of ``share`` of what h moves in the shorter step beside theirs, or of z."""
    moved, pull = np.maximum(_moved(h), _smallest(h) / KICK), np.sqrt(np.mean(z**2, axis=(3, 4)))
    sizes = share * np.concatenate([pull, moved[None]])
    signs = np.where(np.random.default_rng(0).random(h.shape[-1]) < 0.5, 1.0, -1.0)
    return Kicks(activation, h, z, np.where(sizes > 0, sizes, 1.0), signs)


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
def _kicked_feature(function: Function, size, h0, h) -> jax.Array:
    return (function(h0 + size * h) - function(h0)) / size


@partial(jax.jit, static_argnums=0)
def _kicked_gradient(function: Function, size, h0, z0, h, z) -> jax.Array:
    return (_first(function, h0 + size * h) * (z0 + size * z) - _first(function, h0) * z0) / size
