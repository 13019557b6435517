"""The cases of the speed comparison, read by both sides; needs numpy alone."""

from dataclasses import dataclass

import numpy as np

N_FEATURES = 100
N_COMPARED = 8
"""Kernels are compared on the first samples only."""


@dataclass(frozen=True)
class Case:
    """A deep network with ``n_hidden`` hidden layers and a linear readout.

    The layers' kernels are w <phi phi> + b, the first w x.x / D + b.
    """

    activation: str
    n_samples: int
    n_hidden: int
    weight_variance: float
    bias_variance: float = 0.1

    def inputs(self) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(self.n_samples, N_FEATURES))


CASES = {
    "relu": Case("relu", n_samples=2000, n_hidden=30, weight_variance=2.0),
    "erf": Case("erf", n_samples=2000, n_hidden=30, weight_variance=1.5),
    "tanh": Case("tanh", n_samples=500, n_hidden=3, weight_variance=1.5),
    "tanh-large": Case("tanh", n_samples=2000, n_hidden=10, weight_variance=1.5),
}
