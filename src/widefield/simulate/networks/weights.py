r"""What enters a state: inputs and biases, and :math:`W^a\varphi(h^{a-1})` with drawn weights or the same law without them."""

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from widefield.question.network import Network
from widefield.simulate.networks.streams import normals

WEAK = 1e-5  # below this share of its length a new direction is orthogonalized a second time
DEPENDENT = 1e-14  # below this share a feature lies in the span of the earlier ones, to rounding


def coordinates(x: np.ndarray, *, reduce: bool) -> np.ndarray:
    r"""Inputs :math:`x/\sqrt D` as (driven state, sample, coordinate); ``reduce`` takes as few coordinates as possible.

    :math:`U x` is Gaussian with covariance :math:`(u/D)\, x \cdot x'`, so any coordinates with the same inner products
    give the same law. The triangular factor of the stacked inputs is one with at most as many coordinates as inputs;
    it needs no rank decision and keeps the distance of nearly equal inputs.
    """
    n_samples, n_driven, dimension = x.shape
    flat = x.swapaxes(0, 1).reshape(n_driven * n_samples, dimension) / np.sqrt(dimension)
    if reduce and dimension > len(flat):
        flat = np.asarray(np.linalg.qr(flat.T, mode="r")).T
    return flat.reshape(n_driven, n_samples, -1)


class ExternalInput:
    r"""Adds :math:`U^a x^a + \xi^a` to the pre-activations of state :math:`a`, for a batch of networks.

    Parameters are drawn when a state first needs them; ``input_weights`` and ``biases`` hold the standard normal
    numbers of all states with ``keep``, otherwise only those that are tied.
    """

    def __init__(
        self,
        net: Network,
        sizes: Sequence[int],
        inputs: np.ndarray,
        rngs: Sequence[np.random.Generator],
        keep: bool = False,
    ):
        self.net, self.sizes, self.inputs, self.rngs, self.keep = net, sizes, inputs, rngs, keep
        self.input_scales, self.bias_scales = np.sqrt(net.input_variances), np.sqrt(net.bias_variances)
        self.input_weights: list[np.ndarray] = []
        self.biases: list[np.ndarray] = []

    def add(self, a: int, h: np.ndarray) -> None:
        """Add what enters state ``a`` to ``h`` (replicate, sample, neuron) in place."""
        if a < len(self.inputs) and self.input_scales.any():
            shape = (self.inputs.shape[-1], self.sizes[a])
            h += self.input_scales[a] * (self.inputs[a] @ self._drawn(self.input_weights, self.net.inputs, shape))
        if self.bias_scales.any():
            h += self.bias_scales[a] * self._drawn(self.biases, self.net.biases, (1, self.sizes[a]))

    def _drawn(self, kept: list[np.ndarray], sharing: str, shape: tuple[int, int]) -> np.ndarray:
        if sharing == "tied" and kept:
            return kept[0]
        fresh = normals(self.rngs, *shape)
        if sharing == "tied" or self.keep:
            kept.append(fresh)
        return fresh


class DrawnWeights:
    r""":math:`W^a \varphi(h^{a-1})` with drawn weights, for a batch of networks.

    ``weights`` holds the standard normal numbers, of all transitions with ``keep``.
    """

    def __init__(self, net: Network, sizes: Sequence[int], rngs: Sequence[np.random.Generator], keep: bool = False):
        self.scales = np.sqrt(net.weight_variances / np.asarray(sizes[:-1]))
        self.net, self.sizes, self.rngs, self.keep = net, sizes, rngs, keep
        self.weights: list[np.ndarray] = []

    def advance(self, a: int, feature: np.ndarray) -> np.ndarray:
        """Recurrent input of state ``a`` from the features of state ``a - 1``, both (replicate, sample, neuron)."""
        h = feature @ self._drawn(self.sizes[a - 1], self.sizes[a])
        h *= self.scales[a - 1]
        return h

    def _drawn(self, n_from: int, n_to: int) -> np.ndarray:
        if self.weights and self.net.weights == "tied":
            return self.weights[0]
        reused = bool(self.weights) and not self.keep and self.weights[0].shape[1:] == (n_from, n_to)
        fresh = normals(self.rngs, n_from, n_to, out=self.weights[0] if reused else None)
        self.weights = [*self.weights, fresh] if self.keep else [fresh]
        return fresh


class UntiedWeightFree:
    r""":math:`W^a \varphi(h^{a-1})` in law, for a batch of networks whose weights are drawn anew at each transition.

    With :math:`\Phi = L Q` (:math:`P \times n`, orthonormal rows of :math:`Q`), :math:`\Phi W = L (Q W)` and
    :math:`Q W` is a fresh :math:`P \times n'` Gaussian matrix. The triangular factor exists at any rank; with
    :math:`P \ge n` the weights themselves are fewer numbers, and are drawn.
    """

    def __init__(self, net: Network, sizes: Sequence[int], rngs: Sequence[np.random.Generator]):
        self.scales = np.sqrt(net.weight_variances / np.asarray(sizes[:-1]))
        self.sizes, self.rngs = sizes, rngs

    def advance(self, a: int, feature: np.ndarray) -> np.ndarray:
        n_samples, n_from = feature.shape[1:]
        if n_samples < n_from:
            feature = np.asarray(np.linalg.qr(feature.swapaxes(1, 2), mode="r")).swapaxes(1, 2)
        h = feature @ normals(self.rngs, feature.shape[2], self.sizes[a])
        h *= self.scales[a - 1]
        return h


class TiedWeightFree:
    r""":math:`W \varphi(h^{a-1})` in law, for a batch of networks with one weight matrix for all transitions.

    An orthonormal ``basis`` :math:`Q` of all features so far, and the ``action`` :math:`B = Q W` on it, are all that is
    known of :math:`W`: on the complement of :math:`Q` it is still a fresh Gaussian matrix. New features
    :math:`\Phi = C Q + L Q_{\rm new}` therefore give :math:`\Phi W = C B + L B_{\rm new}` with :math:`B_{\rm new}`
    fresh. :math:`A` transitions need :math:`A P \le n`. *Error*: the basis is orthonormal to :math:`10^{-10}` or better. Features that lie in the span of earlier ones
    (duplicate inputs, dead networks, fixed points) add no direction.
    """

    def __init__(self, net: Network, sizes: Sequence[int], n_samples: int, rngs: Sequence[np.random.Generator]):
        self.scales, self.rngs, self.rank = np.sqrt(net.weight_variances / sizes[0]), rngs, 0
        room = (len(rngs), (net.depth - 1) * n_samples, sizes[0])
        self.basis, self.action = np.zeros(room), np.zeros(room)

    def advance(self, a: int, feature: np.ndarray) -> np.ndarray:
        known, rank = self.rank, self.rank + feature.shape[1]
        past, fresh = self.basis[:, :known], self.basis[:, known:rank]
        coefficients = _split(feature, past, fresh)
        normals(self.rngs, out=self.action[:, known:rank])
        self.rank = rank
        h = coefficients @ self.action[:, :rank]
        h *= self.scales[a - 1]
        return h


def _split(feature: np.ndarray, past: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Coefficients of ``feature`` on ``past`` and ``fresh`` rows; the ``fresh`` rows are written here."""
    on_past = feature @ past.swapaxes(1, 2)
    q, r = np.linalg.qr((feature - on_past @ past).swapaxes(1, 2))
    fresh[...] = q.swapaxes(1, 2)
    coefficients = np.concatenate([on_past, r.swapaxes(1, 2)], axis=2)
    length = np.linalg.norm(feature, axis=2)
    weak = (np.abs(np.diagonal(r, axis1=1, axis2=2)) <= WEAK * length).any(axis=1)
    for i in np.flatnonzero(weak):
        coefficients[i], fresh[i] = _split_weak(feature[i], past[i], length[i])
    return coefficients


def _split_weak(feature: np.ndarray, past: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One network's split, safe at any rank.

    Pivoting puts dependent features last, where their directions are left out (rows of zeros); the others are projected
    off ``past`` again, since cancellation may have left a part of it in them.
    """
    unit = feature / np.where(length > 0, length, 1.0)[:, None]
    on_past = unit @ past.T
    q, r, order = scipy.linalg.qr((unit - on_past @ past).T, mode="economic", pivoting=True, check_finite=False)
    n_new = int(np.sum(np.abs(np.diagonal(r)) > DEPENDENT))
    directions, r = q[:, :n_new].T, r[:n_new]
    again = directions @ past.T
    q, r_again = np.linalg.qr((directions - again @ past).T)
    on_new = np.zeros((len(feature), len(feature)))
    on_new[order, :n_new] = (r_again @ r).T
    on_past[order] += r.T @ again
    fresh = np.zeros_like(feature)
    fresh[:n_new] = q.T
    return length[:, None] * np.concatenate([on_past, on_new], axis=1), fresh
