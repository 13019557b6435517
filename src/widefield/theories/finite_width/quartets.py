r"""One-neuron moments :math:`\langle\sigma_i\sigma_j\sigma_k\sigma_l\rangle` of sets of four samples, some of them equal."""

import numpy as np

from widefield.answer.certificate import SolveError
from widefield.gaussian import quartic
from widefield.question.activation import Activation
from widefield.theories.finite_width.moments import FourthMoments

CHUNK = 4096  # sets at a time


def quartets(activation: Activation, sets: np.ndarray, K: np.ndarray, fourth: FourthMoments, rtol: float):
    """Moments of sorted index sets (set, 4) and their largest error, relative to √(<σ⁴>…<σ⁴>)^¼.

    Sets of one or two different samples are looked up among the pair moments; the others are four-dimensional averages.
    """
    first, last = sets[:, 0], sets[:, 3]
    count = np.sum(sets == first[:, None], axis=1)
    pairs = np.all((sets == first[:, None]) | (sets == last[:, None]), axis=1)
    value = np.where(count == 3, fourth.cubic[first, last], fourth.square[first, last])
    value = np.where(count == 1, fourth.cubic[last, first], value)
    error = fourth.error
    if not pairs.all():
        value[~pairs], more = _different(activation, sets[~pairs], K)
        scale = np.prod(np.diag(fourth.square)[sets[~pairs]], axis=1) ** 0.25
        error = max(error, float(np.max(more / np.where(scale > 0, scale, 1))))
    if not error <= rtol:
        raise SolveError(
            f"Fourth moments of {activation} are known only to {error:.1e} of their scale (asked rtol={rtol:g})."
        )
    return value, error


def _different(activation: Activation, sets: np.ndarray, K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Averages over three or four different samples."""
    if activation.known_as("linear"):
        i, j, k, l = sets.T
        return K[i, j] * K[k, l] + K[i, k] * K[j, l] + K[i, l] * K[j, k], np.zeros(len(sets))
    parts = [
        quartic.fourth_moment(activation, K[part[:, :, None], part[:, None, :]])
        for part in np.split(sets, range(CHUNK, len(sets), CHUNK))
    ]
    values, errors = (np.concatenate([np.asarray(part[k]) for part in parts]) for k in range(2))
    return values, errors
