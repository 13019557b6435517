r"""Test inputs of linear networks: they follow the random network's conditional law given the training neurons.

.. math::
    H_{*,\rm tr} = K_{*,\rm tr}K_{\rm tr}^{-1}H_{\rm tr}, \qquad
    H_{**'} = K_{**'} + K_{*,\rm tr}\,(K_{\rm tr}^{-1}H_{\rm tr}K_{\rm tr}^{-1} - K_{\rm tr}^{-1})\,K_{{\rm tr},*'}

Section 4 of theory/posterior; forward in the states, because :math:`K` of a state needs :math:`H` of the one before.
Their conjugate field vanishes, so they do not change the training kernel.
"""

import numpy as np

from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.posterior import linear
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.branches import Stationary, expand


def test_kernel(found: Stationary, network: Network, task: Task) -> np.ndarray:
    r""":math:`H_{*,\rm tr}`, (test node, training node)."""
    problem = found.problem
    x, x_test = task.sequences(network.depth), task.sequences(network.depth, test=True)[task.n_samples :]
    drive = core.drive_between(network, x_test, x)
    inverse = _inverse_covariance(found)
    H = np.zeros_like(drive)
    for _ in range(network.depth):  # each pass makes one state more final
        K = drive + np.asarray(core.shifted(problem, H))
        H = K @ inverse @ found.kernel
    return H


def _inverse_covariance(found: Stationary) -> np.ndarray:
    """K^{-1} on the range of the random network's kernel."""
    J = found.layout.inverse
    K = J @ np.asarray(found.layout.covariance(linear.kernel(found.layout, found.point))) @ J.swapaxes(-1, -2)
    return expand(found.layout, J.swapaxes(-1, -2) @ np.linalg.inv(K) @ J)
