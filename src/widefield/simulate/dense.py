r"""The plain sampler: every weight is drawn."""

from collections.abc import Sequence

import numpy as np

from widefield.question.network import Network
from widefield.simulate.streams import normals


class Dense:
    r""":math:`W^a \varphi(h^{a-1})` with drawn weights, for a batch of networks.

    Cost per network: :math:`n^2` random numbers per transition (untied) or once (tied), and :math:`2 n^2 P` flops per
    transition. ``weights`` holds the standard normal numbers, of all transitions with ``keep``.
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
        if self.keep or not self.weights or self.weights[0].shape[1:] != (n_from, n_to):
            fresh = normals(self.rngs, n_from, n_to)
            self.weights = [*self.weights, fresh] if self.keep else [fresh]
        else:
            fresh = normals(self.rngs, out=self.weights[0])
        return fresh
