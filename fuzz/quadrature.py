"""Gaussian averages by brute force: panels of Gauss–Legendre nodes, graded towards every point where a function may turn."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

REACH, ORDER = 12.0, 10
NODES, WEIGHTS = np.polynomial.legendre.leggauss(ORDER)
GRADED = np.concatenate([[0.0], REACH * 2.0 ** -np.arange(28)])
EVEN = np.linspace(-REACH, REACH, 41)
sigmoid = special.expit
gelu_slope = lambda z: special.ndtr(z) + z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)  # noqa: E731
PLAIN: dict[str, tuple[Callable, Callable]] = {  # φ, φ'
    "linear": (lambda z: z, np.ones_like),
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0) * 1.0),
    "leaky_relu": (lambda z: np.where(z > 0, z, 0.01 * z), lambda z: np.where(z > 0, 1.0, 0.01)),
    "abs": (np.abs, np.sign),
    "erf": (special.erf, lambda z: 2 / np.sqrt(np.pi) * np.exp(-(z**2))),
    "gelu": (lambda z: z * special.ndtr(z), gelu_slope),
    "sin": (np.sin, np.cos),
    "cos": (np.cos, lambda z: -np.sin(z)),
    "rbf": (
        lambda z: np.sqrt(2) * np.sin(np.sqrt(2) * z + np.pi / 4),
        lambda z: 2 * np.cos(np.sqrt(2) * z + np.pi / 4),
    ),
    "quadratic": (lambda z: z**2, lambda z: 2 * z),
    "exp": (np.exp, np.exp),
    "tanh": (np.tanh, lambda z: 1 / np.cosh(np.clip(z, -300, 300)) ** 2),
    "sigmoid": (sigmoid, lambda z: sigmoid(z) * sigmoid(-z)),
    "softplus": (lambda z: np.logaddexp(0, z), sigmoid),
    "silu": (lambda z: z * sigmoid(z), lambda z: sigmoid(z) * (1 + z * sigmoid(-z))),
}
OWN: dict[str, tuple[float, ...]] = {  # functions of a user, and where they are not smooth
    "z * np.abs(z)": (0.0,),
    "np.tanh(z) + 0.3 * z": (),
    "np.maximum(z, -0.5)": (-0.5,),
    "np.exp(-(z**2))": (),
    "np.clip(z, -1, 1)": (-1.0, 1.0),
}


def functions(name: str) -> tuple[Callable, Callable, np.ndarray]:
    """φ, φ' and where they turn."""
    if name in PLAIN:
        return *PLAIN[name], np.zeros(1)

    def slope(z: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            of_one = jax.grad(lambda v: eval(name, {"np": jnp, "z": v}))
            return np.asarray(jax.vmap(of_one)(jnp.asarray(z).ravel())).reshape(z.shape)

    return lambda z: eval(name, {"np": np, "z": z}), slope, np.unique([0.0, *OWN[name]])


def rule(turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and Gaussian weights on panels graded towards ``turns`` (…, k), along the last axis."""
    turns = np.clip(turns, -REACH, REACH)
    graded = np.concatenate([turns[..., None] + GRADED, turns[..., None] - GRADED], axis=-1)
    even = np.broadcast_to(EVEN, (*turns.shape[:-1], len(EVEN)))
    edges = np.concatenate([graded.reshape(*turns.shape[:-1], -1), even], axis=-1)
    edges = np.sort(np.clip(edges, -REACH, REACH), axis=-1)
    half = np.diff(edges)[..., None] / 2
    x = (edges[..., :-1, None] + half * (1 + NODES)).reshape(*turns.shape[:-1], -1)
    return x, (half * WEIGHTS).reshape(x.shape) * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def average(f: Callable, a: float, b: float, c: float, turns: np.ndarray) -> float:
    """⟨f(u)f(v)⟩ of a centered pair with variances a, b and covariance c."""
    scales = np.sqrt([a, b])
    if not scales.all():
        rules = [rule(turns / scale if scale else np.zeros(1)) for scale in scales]
        return float(np.prod([np.sum(weight * f(scale * s)) for scale, (s, weight) in zip(scales, rules)]))
    rho = np.clip(c / np.prod(scales), -1, 1)
    tail = np.sqrt((1 - rho) * (1 + rho))
    s, weight = rule(np.concatenate([turns / scales[0], turns / (rho * scales[1]) if rho else turns]))
    if tail == 0:
        return float(np.sum(weight * f(scales[0] * s) * f(rho * scales[1] * s)))
    total = 0.0
    for part in np.array_split(np.flatnonzero(weight > 1e-20 * weight.max()), 8):
        t, inner = rule((turns / scales[1] - rho * s[part, None]) / tail)
        later = np.sum(inner * f(scales[1] * (rho * s[part, None] + tail * t)), axis=1)
        total += float(np.sum(weight[part] * f(scales[0] * s[part]) * later))
    return total
