r"""What enters a state from outside: inputs through :math:`U` and biases :math:`\xi`."""

from collections.abc import Sequence

import numpy as np

from widefield.question.network import Network
from widefield.simulate.networks.streams import normals


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
        tied = sharing == "tied"
        if tied and kept:
            return kept[0]
        fresh = normals(self.rngs, *shape)
        if tied or self.keep:
            kept.append(fresh)
        return fresh
