"""What `simulate.finite_width` promises: shapes, seeds, words for bad input, loud overflow."""

import numpy as np
import pytest

import widefield as wf

TASK = wf.Task(np.random.default_rng(0).standard_normal((2, 3)))
RUN = {"width": 6, "replicates": 40, "seed": 1, "groups": 4}
NETWORKS = [wf.DNN(2, "relu"), wf.RNN(3, "erf", readout_variance=None)]


@pytest.mark.parametrize("net", NETWORKS, ids=("untied", "tied"))
def test_dims_seeds_and_what_success_rests_on(net):
    first, again, other = (wf.simulate.finite_width(net, TASK, **RUN | {"seed": s}) for s in (1, 1, 2))
    pair = ("replicate", "layer", "sample", "sample_")
    assert first.covariance.dims == first.kernel_variance.dims == pair and first.covariance.shape == (4, 3, 2, 2)
    assert first.connected.dims == first.vertex.dims == (*pair, "sample__", "sample___")
    for name in first.data.data_vars:
        np.testing.assert_array_equal(first.data[name], again.data[name])
    assert not np.allclose(first.covariance, other.covariance)
    assert first.certificate.options["groups"] == 4 and list(first.certificate.checks) == ["lost"]
    diagonal = np.einsum("rlabab->rlab", first.connected.values)
    np.testing.assert_allclose(diagonal, first.kernel_variance, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("kind", [wf.DNN, wf.RNN])
def test_overflow_is_loud(kind):
    net = kind(5, "exp", weight_variance=50.0)
    with pytest.raises(wf.SolveError, match="overflowed"):
        wf.simulate.finite_width(net, TASK, **RUN)
    partial = wf.simulate.finite_width(net, TASK, **RUN, throw=False)
    assert partial.status is wf.Status.nonfinite and partial.certificate.checks["lost"].value > 0
    assert np.isfinite(partial.covariance[:, 0]).all()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"width": 0}, "width"),
        ({"replicates": 7}, "replicates"),
        ({"groups": 1}, "groups"),
        ({"seed": -1}, "seed"),
        ({"quantities": "kernel"}, "quantities"),
        ({"progress": "yes"}, "progress"),
    ],
)
def test_bad_arguments_are_named(change, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        wf.simulate.finite_width(NETWORKS[0], TASK, **RUN | change)
