"""Two-time kernels from the site's variables at chosen steps, Eq. (dynamics.8)."""

from collections.abc import Mapping

import numpy as np

from widefield.theories.dynamics.march.batch import SiteValues

Samples = Mapping[int, SiteValues]  # by step


def features(samples: Samples, weight: float, n_train: int, by_layer: bool) -> np.ndarray:
    """Φ (state, state_, at, at_, sample, sample_) of the training samples; ``by_layer``: of each state with itself."""
    phi = stack(samples, "feature")[:, :, :n_train]
    n_states = phi.shape[1]
    pairs = [[k] if by_layer else range(n_states) for k in range(n_states)]
    return np.stack([np.stack([_gram(phi[:, k], phi[:, l], weight) for l in others]) for k, others in enumerate(pairs)])


def gradients(samples: Samples, weight: float, n_train: int, by_layer: bool) -> np.ndarray:
    """G (channel, channel_, state, state_, at, at_, sample, sample_), likewise."""
    g = stack(samples, "gradient")[:, :, :, :n_train]  # (at, channel, state, sample, S)
    _, n_channels, n_states = g.shape[:3]
    pairs = [[k] if by_layer else range(n_states) for k in range(n_states)]
    one = lambda c, d: np.stack(  # noqa: E731
        [np.stack([_gram(g[:, c, k], g[:, d, l], weight) for l in others]) for k, others in enumerate(pairs)]
    )
    return np.stack([np.stack([one(c, d) for d in range(n_channels)]) for c in range(n_channels)])


def tangent_alignment(labels: np.ndarray, ntk: np.ndarray) -> np.ndarray:
    """Cosine (step,) of the tangent kernel (step, channel, channel_, …) of the training samples with the labels' kernel.

    Both are matrices over (readout, output, sample); ``labels`` are (readout, sample, output).
    """
    y = np.moveaxis(labels, 2, 1).reshape(-1, labels.shape[1])
    K = ntk[..., : y.shape[1], : y.shape[1]]
    rows = np.isfinite(K).all(axis=(1, 2, 3, 4))
    K = np.where(rows[:, None, None, None, None], K, 0.0)
    size = np.sqrt(np.sum(K**2, axis=(1, 2, 3, 4))) * np.sum(y**2)
    return np.where(rows, np.einsum("tcdpq,cp,dq->t", K, y, y) / np.where(size > 0, size, 1.0), np.inf)


def _gram(a: np.ndarray, b: np.ndarray, weight: float) -> np.ndarray:
    """(at, at_, sample, sample_) of two fields (at, sample, S)."""
    n_at, n, size = a.shape
    gram = weight * a.reshape(-1, size) @ b.reshape(-1, size).T
    return gram.reshape(n_at, n, n_at, n).swapaxes(1, 2)


def stack(samples: Samples, name: str) -> np.ndarray:
    """Samples (at, …, S) at all chosen steps; coordinates that opened later are zero before."""
    arrays = [getattr(samples[t], name) for t in sorted(samples)]
    size = max(array.shape[-1] for array in arrays)
    return np.stack([np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, size - a.shape[-1])]) for a in arrays])
