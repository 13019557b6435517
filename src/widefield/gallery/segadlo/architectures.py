"""The two architectures and the two kinds of biases that the paper compares."""

import numpy as np

import widefield as wf

KINDS = ("DNN", "RNN")
BIASES = {"untied": "uncorrelated", "tied": "static"}
FIRST = {"sample": 0, "sample_": 0}


def relu_network(
    kind: str, depth: int, variance: float, bias_variance: float = 0.0, biases: str = "untied"
) -> wf.Network:
    """A network of relu neurons with g0² = g² = ``variance`` everywhere; A = ``depth`` − 1."""
    return getattr(wf, kind)(
        depth, "relu", weight_variance=variance, input_variance=variance, readout_variance=variance,
        bias_variance=bias_variance, biases=biases,
    )  # fmt: skip


def one_input(dimension: int, seed: int) -> wf.Task:
    """x ~ N(1, 1)."""
    return wf.Task(np.random.default_rng(seed).normal(1.0, 1.0, size=(1, dimension)))
