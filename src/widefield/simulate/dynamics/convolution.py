"""Training of convolutional networks in the parameterization of `widefield.dynamics`: channels take the place of neurons."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FILTER = 3  # rows and columns of a filter, stride 1, padded with zeros


def train(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    *,
    width: int,
    depth: int,
    richness: float,
    rate: float,
    batch: int,
    at: np.ndarray,
    replicates: int,
    seed: int,
) -> dict[str, np.ndarray]:
    r"""Test loss, test accuracy and alignment of the last features with the labels, each (replicate, at).

    .. math::
        h^{l+1}_a = \sqrt{2/9N}\textstyle\sum_bW^l_b\,\mathrm{relu}(h^l_{a+b}), \qquad
        f = \frac1{\gamma_0N}w\cdot\langle\mathrm{relu}(h^L_a)\rangle_a - f_0, \qquad
        \theta\leftarrow\theta-\eta\gamma_0^2N\,\nabla\tfrac12\langle(f-y)^2\rangle_{\rm batch}

    Appendix C.2 and Eq. 84 of Bordelon & Pehlevan (2022), with the multiplier 2/9 that keeps the variance of h over 3 × 3
    filters and relu (they have none, and their code leaves out the last hidden layer), and outputs less the initial
    ones. Images are (sample, row, column, color); ``at`` are the steps that are measured, the last ends the training.
    Method: float32, one network after the other, each with weights and batches of its own.
    """
    images, tests = jnp.asarray(x, jnp.float32), jnp.asarray(x_test, jnp.float32)
    labels = jnp.asarray(y, jnp.float32)
    curves: list[list[tuple[float, ...]]] = []
    for child in np.random.SeedSequence(seed).spawn(replicates):
        rng = np.random.default_rng(child)
        weights = initial(rng, depth, width, x.shape[-1])
        first, first_test = (features(weights, part)[1] for part in (images, tests))
        rows = []
        for t in range(int(at[-1]) + 1):
            if t in at:
                rows.append(measured(weights, tests, np.asarray(first_test), y_test, richness))
            chosen = rng.choice(len(x), batch, replace=False)
            weights = update(weights, images[chosen], labels[chosen], first[chosen], richness, rate)
        curves.append(rows)
    names = ("test_loss", "accuracy", "alignment")
    return dict(zip(names, np.moveaxis(np.array(curves), -1, 0), strict=True))


def initial(rng: np.random.Generator, depth: int, width: int, colors: int) -> list[Any]:
    """Standard normal filters (row, column, channel in, channel out) of every layer, and the readout."""
    shapes = [(FILTER, FILTER, colors if k == 0 else width, width) for k in range(depth)]
    return [jnp.asarray(rng.standard_normal(shape, dtype=np.float32)) for shape in (*shapes, (width,))]


@jax.jit
def features(weights, x):
    """Features of the last layer averaged over pixels (sample, channel), and outputs times the richness."""
    *filters, readout = weights
    for k, W in enumerate(filters):
        gain = (2 if k else 1) / (FILTER**2 * W.shape[2])
        h = jax.lax.conv_general_dilated(x, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(jnp.sqrt(jnp.asarray(gain, h.dtype)) * h)
    pooled = x.mean(axis=(1, 2))
    return pooled, pooled @ readout / len(readout)


@partial(jax.jit, donate_argnums=0)
def update(weights, x, y, first, richness, rate):
    """One step of gradient descent with the raw rate ηγ0²N."""
    loss = lambda weights: 0.5 * jnp.mean(((features(weights, x)[1] - first) / richness - y) ** 2)  # noqa: E731
    slopes = jax.grad(loss)(weights)
    raw = (rate * richness**2 * len(weights[-1])).astype(weights[-1].dtype)
    return [w - raw * slope for w, slope in zip(weights, slopes, strict=True)]


def measured(weights, x_test, first, y_test, richness) -> tuple[float, ...]:
    """Test loss, share of test images on the right side (outputs of zero: half), and A(Φ, yyᵀ) of the last features."""
    pooled, output = (np.asarray(part, np.float64) for part in features(weights, x_test))
    f = (output - first) / richness
    error = 0.5 * np.mean((f - y_test) ** 2)
    right = 0.5 + 0.5 * np.mean(np.sign(f * y_test))
    kernel, target = pooled @ pooled.T, np.outer(y_test, y_test)
    norms = np.linalg.norm(kernel, axis=(-2, -1)) * np.linalg.norm(target, axis=(-2, -1))
    return float(error), float(right), float(np.sum(kernel * target, axis=(-2, -1)) / norms)
