r"""Gaussian averages of pairs of nodes, :math:`\langle\varphi^{(i)}(a)\varphi^{(j)}(b)\rangle`, with error estimates."""

from widefield.gaussian import closed, quadrature
from widefield.gaussian.averages import Expectation, expectation
from widefield.gaussian.kernels import AbstractKernel, ClosedKernel, SeriesKernel, kernel_for
from widefield.gaussian.refined import RefinedKernel

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
