"""Gradient flow as a limit: everything that is returned belongs to the same outputs and is judged."""

import numpy as np
import pytest

import widefield as wf
from widefield.theories.dynamics.curves import Estimate, TrainingCurves
from widefield.theories.dynamics.methods.flow import extrapolated
from widefield.theories.dynamics.problem import problem
from widefield.theories.dynamics.request import make_request

X, Y = np.random.default_rng(0).normal(size=(4, 8)), np.array([1.0, -1.0, 1.0, -1.0])
NET, TASK = wf.DNN(2, "linear"), wf.Task(X, Y)


def test_the_loss_is_that_of_the_outputs():
    found = wf.dynamics(NET, TASK, wf.Training(2.0, 2, flow=True), quantities=("loss", "prediction"))
    own = 0.5 * np.sum((found.prediction.values[..., 0] - Y) ** 2, axis=1)
    np.testing.assert_allclose(found.loss, own, rtol=1e-12)


@pytest.mark.parametrize("rough", ["ntk", "feature_kernel", "alignment"])
def test_a_kernel_that_has_no_limit_is_seen(rough):
    """Outputs are the same at every rate, the kernel jumps from each rate to the next."""
    question = problem(NET, TASK, wf.Training(0.1, 2, flow=True))
    request = make_request(
        question, method="full", paths=None, at=None, quantities=None, rtol=None, seed=0, progress=False
    )

    def level(finer, request, n_paths):
        n_rows = len(finer.rates)
        jumps = Estimate(np.full((n_rows, 1, 1, 4, 4), 1.0 + np.log2((n_rows - 1) / 2) % 2))
        kernels = {rough: jumps.each(lambda v: v[:1]) if rough == "feature_kernel" else jumps}
        outputs = Estimate(np.ones((n_rows, 2, 4, 1)))
        return TrainingCurves(outputs, Estimate(np.ones(n_rows)), kernels, error=0.0, rtol=1e-3)

    curves = extrapolated(question, request, level)
    assert curves.error > curves.rtol and curves.status is wf.Status.not_converged
