"""Two-time kernels from the site's variables at chosen steps, Eq. (dynamics.8)."""

from collections.abc import Mapping

import numpy as np

from widefield.theories.dynamics.march.batch import SiteValues

Samples = Mapping[int, SiteValues]  # by step


def features(samples: Samples, weight: float, by_layer: bool) -> np.ndarray:
    """Φ (state, state_, at, at_, sample, sample_) of the samples; ``by_layer``: of each state with itself."""
    phi = stack(samples, "feature")
    return _averages(phi, phi, weight, by_layer)


def gradients(samples: Samples, weight: float, by_layer: bool) -> np.ndarray:
    """G (channel, channel_, state, state_, at, at_, sample, sample_), likewise."""
    channels = np.moveaxis(stack(samples, "gradient"), 1, 0)
    return np.stack([np.stack([_averages(g, other, weight, by_layer) for other in channels]) for g in channels])


def _averages(a: np.ndarray, b: np.ndarray, weight: float, by_layer: bool) -> np.ndarray:
    """(state, state_, at, at_, sample, sample_) of two fields (at, state, sample, S)."""
    n_at, n_states, n, size = a.shape

    def average(k: int, l: int) -> np.ndarray:
        gram = weight * a[:, k].reshape(-1, size) @ b[:, l].reshape(-1, size).T
        return gram.reshape(n_at, n, n_at, n).swapaxes(1, 2)

    others = lambda k: [k] if by_layer else range(n_states)  # noqa: E731
    return np.stack([np.stack([average(k, l) for l in others(k)]) for k in range(n_states)])


def stack(samples: Samples, name: str) -> np.ndarray:
    """Samples (at, …, S) at all chosen steps; coordinates that opened later are zero before."""
    arrays = [getattr(samples[t], name) for t in sorted(samples)]
    size = max(array.shape[-1] for array in arrays)
    return np.stack([np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, size - a.shape[-1])]) for a in arrays])


def tangent_alignment(labels: np.ndarray, ntk: np.ndarray) -> np.ndarray:
    """Cosine (step,) of the tangent kernel (step, channel, channel_, …) of the training samples with the labels' kernel.

    Both are matrices over (readout, output, sample); ``labels`` are (readout, sample, output).
    """
    y = np.moveaxis(labels, 2, 1).reshape(-1, labels.shape[1])
    rows = np.isfinite(ntk).all(axis=(1, 2, 3, 4))
    K = np.where(rows[:, None, None, None, None], ntk, 0.0)
    size = np.sqrt(np.sum(K**2, axis=(1, 2, 3, 4))) * np.sum(y**2)
    return np.where(rows, np.einsum("tcdpq,cp,dq->t", K, y, y) / np.where(size > 0, size, 1.0), np.inf)
