"""From layers to the fields of a solution, Eq. (finite_width.7): normalized, and copied back to duplicate inputs."""

import numpy as np

from widefield.theories.finite_width.untied import recursion
from widefield.theories.finite_width.untied.layers import Layer

PAIR = ("layer", "sample", "sample_")
DIMS: dict[str, tuple[str, ...]] = {
    "kernel": PAIR,
    "correction": PAIR,
    "covariance": PAIR,
    "kurtosis": PAIR[:2],
    "ratio": PAIR[:1],
    "neuron_correlation": PAIR[:2],
    "kernel_variance": PAIR,
    "vertex_quadruples": ("layer", "quadruple"),
    "vertex_pairs": (*PAIR, "pair", "pair_"),
    "vertex": (*PAIR, "sample__", "sample___"),
    "connected": (*PAIR, "sample__", "sample___"),
}
PAIR_NAMES = ["11", "12", "22"]


def field_of(name: str, layers: list[Layer], n: np.ndarray, back: np.ndarray) -> np.ndarray:
    """One field; ``n`` are the widths that feed the layers, ``back`` the different input that each sample is."""
    both = np.ix_(back, back)
    if name == "kernel":
        return np.stack([layer.kernel[both] for layer in layers])
    if name == "correction":
        return np.stack([layer.correction[both] for layer in layers])
    if name == "covariance":
        return np.stack([(layer.kernel + layer.correction / m)[both] for layer, m in zip(layers, n, strict=True)])
    if name == "kernel_variance":
        return np.stack([layer.blocks[..., 1, 1][both] / m for layer, m in zip(layers, n, strict=True)])
    if name == "vertex_pairs":
        return np.stack([layer.blocks[both] for layer in layers])
    if name == "vertex_quadruples":
        return np.stack([layer.chosen[:, 1, 1] for layer in layers])
    if name in ("vertex", "connected"):
        count = len(layers[0].kernel)
        scale = n if name == "connected" else np.ones_like(n)
        every = np.ix_(back, back, back, back)
        return np.stack(
            [recursion.unfold(layer.matrix, count)[every] / m for layer, m in zip(layers, scale, strict=True)]
        )
    relative = np.stack([relative_variance(layer) / m for layer, m in zip(layers, n, strict=True)])
    if name == "ratio":
        return relative[:, back].max(axis=1)
    return {"kurtosis": 3.0, "neuron_correlation": 0.5}[name] * relative[:, back]


def relative_variance(layer: Layer) -> np.ndarray:
    """V_{(11)(11)}/K² of every sample; zero for an output that is always zero."""
    K = np.diag(layer.kernel)
    return np.diagonal(layer.blocks[..., 0, 0]) / np.where(K > 0, K, 1) ** 2
