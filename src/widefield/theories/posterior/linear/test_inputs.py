r"""Test inputs of linear networks: they follow the random network's conditional law given the training neurons.

.. math::  H_{*,\rm tr} = K_{*,\rm tr}K_{\rm tr}^{-1}H_{\rm tr}

Eq. (posterior.10); forward in the states, because :math:`K` of a state needs :math:`H` of the one before. Their
conjugate field vanishes, so they do not change the training kernel.
"""

import numpy as np

from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.linear.stationary import LinearState, expand


def kernel_with_test_inputs(state: LinearState, network: Network, task: Task) -> np.ndarray:
    r""":math:`H_{*,\rm tr}`, (test node, training node)."""
    inputs, _ = core.input_kernels_of_test(network, task)
    inverse = _inverse_covariance(state)
    H = np.zeros_like(inputs)
    for _ in range(network.depth):  # each pass makes one state more final
        K = inputs + np.asarray(core.shifted(state.problem, H))
        H = K @ inverse @ state.hidden
    return H


def _inverse_covariance(state: LinearState) -> np.ndarray:
    """K^{-1} on the range of the random network's kernel."""
    J = state.layout.inverse
    K = J @ np.asarray(state.layout.covariance(linear.kernel(state.layout, state.point))) @ J.swapaxes(-1, -2)
    return expand(state.layout, J.swapaxes(-1, -2) @ np.linalg.inv(K) @ J)
