"""The static limit: outputs that follow the tangent kernel of the random network."""

import jax.numpy as jnp
import numpy as np

from widefield.question.task import Task
from widefield.theories.dynamics import losses
from widefield.theories.dynamics.problem import Problem
from widefield.theories.prior import prior


@np.errstate(over="ignore", invalid="ignore")  # a divergence is found by its loss
def lazy(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions (step, readout, sample, output) of all inputs, the loss, and the kernel (readout, readout_, sample, sample_)."""
    kernel = tangent_kernel(problem)
    shape, n_train = problem.shape, problem.task.n_samples
    labels = jnp.asarray(problem.labels)
    f = np.zeros((len(shape.readouts), kernel.shape[-1], shape.n_outputs))
    motion = np.zeros_like(f)
    curves, values = [], []
    for rate in problem.rates:
        curves.append(f)
        read = jnp.asarray(f[:, :n_train])
        values.append(float(losses.total(problem.loss, read, labels)))
        delta = -np.asarray(shape.gradient(read, labels))
        kick = np.einsum("cdpq,dqo->cpo", kernel[..., :n_train], delta)
        inertia = 1.0 if problem.momentum_time is None else rate / problem.momentum_time
        motion = (1 - inertia) * motion + inertia * kick
        f = f + rate * motion
    return np.asarray(curves), np.asarray(values), kernel


def tangent_kernel(problem: Problem) -> np.ndarray:
    """The prior's NTK between the readouts, training and test inputs together."""
    x = problem.task.sequences(problem.network.depth, test=True)
    x = x[:, 0] if x.shape[1] == 1 else x
    found = prior(problem.network, Task(x, supervised=problem.readouts), quantities="ntk").ntk.values
    if len(problem.readouts) == 1:
        if problem.readouts[0] != problem.network.depth - 1:
            raise ValueError("`task` must be supervised at the last state, or at several, with method='lazy'.")
        return found[None, None]
    return found[np.ix_(problem.readouts, problem.readouts)]
