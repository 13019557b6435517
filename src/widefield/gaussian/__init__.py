r"""Gaussian averages of pairs of nodes, :math:`\langle\varphi^{(i)}(a)\varphi^{(j)}(b)\rangle`, with error estimates."""

from widefield.gaussian import closed, quadrature
from widefield.gaussian.averages import Expectation, expectation
from widefield.gaussian.kernels import AbstractKernel, ClosedKernel, RefinedKernel, SeriesKernel, kernel_for

__all__ = [
    "AbstractKernel",
    "ClosedKernel",
    "Expectation",
    "RefinedKernel",
    "SeriesKernel",
    "closed",
    "expectation",
    "kernel_for",
    "quadrature",
]
