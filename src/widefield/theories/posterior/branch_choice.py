"""Linear or nonlinear: the only place that asks. What follows sees the interface of `branches`."""

import numpy as np

from widefield.question.activation import Activation
from widefield.theories.posterior.branches import Branches, Options
from widefield.theories.posterior.linear.branches import LinearBranches
from widefield.theories.posterior.nonlinear.branches import NonlinearBranches
from widefield.theories.posterior.problem import Problem

ALONG_BRANCHES = ("transition", "tricritical")


def branches_of(problem: Problem, activation: Activation, options: Options) -> Branches:
    """The branches of a problem; linear networks go the nonlinear way where an integration is asked for.

    Without inputs every state is zero, whatever the activation: the linear way knows it.
    """
    silent = not np.any(problem.input_kernel)
    if silent and float(activation.function(np.zeros(()))) != 0:
        raise ValueError(
            f"`task` must have an input that is not zero: {activation} is not zero at zero, and a state without a "
            "distribution has no saddle point of its kernels here."
        )
    if silent or (activation.known_as("linear") and options.integration == "auto"):
        return LinearBranches.make(problem, options)
    if options.question in ALONG_BRANCHES:
        return NonlinearBranches.for_branches(problem, activation, options)
    return NonlinearBranches.for_states(problem, activation, options)
