"""Two-time kernels from the site's variables at chosen steps."""

import numpy as np

from widefield.theories.dynamics.run import Run


def features(run: Run, n_train: int) -> np.ndarray:
    """Φ (state, state_, at, at_, sample, sample_) of the training samples."""
    return _gram(_stack(run, 0)[:, :, :n_train], run.weight)


def gradients(run: Run, n_train: int) -> np.ndarray:
    """G (channel, channel_, state, state_, at, at_, sample, sample_)."""
    g = _stack(run, 1)  # (at, channel, state, sample, S)
    g = g[:, :, :, :n_train]
    n_at, n_channels, n_states, n, size = g.shape
    flat = np.moveaxis(g, 0, 2).reshape(-1, size)
    gram = run.weight * flat @ flat.T
    gram = gram.reshape(n_channels, n_states, n_at, n, n_channels, n_states, n_at, n)
    return gram.transpose(0, 4, 1, 5, 2, 6, 3, 7)


def _gram(phi: np.ndarray, weight: float) -> np.ndarray:
    n_at, n_states, n, size = phi.shape
    flat = phi.swapaxes(0, 1).reshape(-1, size)
    gram = (weight * flat @ flat.T).reshape(n_states, n_at, n, n_states, n_at, n)
    return gram.transpose(0, 3, 1, 4, 2, 5)


def _stack(run: Run, which: int) -> np.ndarray:
    """Samples at all chosen steps; coordinates that opened later are zero before."""
    arrays = [run.samples[t][which] for t in sorted(run.samples)]
    size = max(array.shape[-1] for array in arrays)
    return np.stack([np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, size - a.shape[-1])]) for a in arrays])
