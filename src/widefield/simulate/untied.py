r"""Untied weights without weights: the next state is Gaussian given the Gram matrix of this one."""

from collections.abc import Sequence

import numpy as np

from widefield.question.network import Network
from widefield.simulate.streams import normals


class UntiedWeightFree:
    r""":math:`W^a \varphi(h^{a-1})` in law, for a batch of networks whose weights are drawn anew at each transition.

    With :math:`\Phi = L Q` (:math:`P \times n`, orthonormal rows of :math:`Q`), :math:`\Phi W = L (Q W)` and
    :math:`Q W` is a fresh :math:`P \times n'` Gaussian matrix. The triangular factor exists at any rank. Cost per
    network and transition: :math:`n' P` random numbers and :math:`2 n P^2` flops; with :math:`P \ge n` the weights
    themselves are fewer numbers, and are drawn.
    """

    def __init__(self, net: Network, sizes: Sequence[int], rngs: Sequence[np.random.Generator]):
        self.scales = np.sqrt(net.weight_variances / np.asarray(sizes[:-1]))
        self.sizes, self.rngs = sizes, rngs

    def advance(self, a: int, feature: np.ndarray) -> np.ndarray:
        """Recurrent input of state ``a`` from the features of state ``a - 1``, both (replicate, sample, neuron)."""
        n_samples, n_from = feature.shape[1:]
        if n_samples < n_from:
            feature = np.asarray(np.linalg.qr(feature.swapaxes(1, 2), mode="r")).swapaxes(1, 2)
        h = feature @ normals(self.rngs, feature.shape[2], self.sizes[a])
        h *= self.scales[a - 1]
        return h
