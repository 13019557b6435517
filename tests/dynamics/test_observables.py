"""Alignments with the labels, and samples of h and z: what they are made of, in theory and in networks."""

import numpy as np
import pytest

import widefield as wf
from tests.dynamics import test_contracts, test_statistics
from tests.dynamics.question import experiment, predict
from tests.dynamics.test_oracles import DEEP, EVERYWHERE, TIED, ask

full = pytest.mark.full
RNG = np.random.default_rng(3)
OUTPUTS = wf.Task(RNG.normal(size=(2, 8)), RNG.normal(size=(2, 2)))
CASES = [
    (wf.DNN(2, "linear"), DEEP),
    pytest.param(wf.DNN(2, "linear"), OUTPUTS, marks=full),
    pytest.param(TIED, EVERYWHERE, marks=full),
]


def equal_times(kernel, dim="step"):
    """Φ^{kk}(t,t) as (…, state or layer, step, sample, sample_)."""
    values = kernel.transpose(..., dim, f"{dim}_", "sample", "sample_").values
    if "state" in kernel.dims:
        values = np.moveaxis(np.diagonal(values, axis1=-6, axis2=-5), -1, -5)
    return np.moveaxis(np.diagonal(values, axis1=-4, axis2=-3), -1, -3)


def assert_aligned(solution, task):
    """Both cosines by `wf.alignment`, from the kernels of the same solution."""
    y = task.labels()  # (sample, readout, output)
    right = wf.alignment(equal_times(solution.feature_kernel), np.einsum("pco,qco->pq", y, y))
    np.testing.assert_allclose(solution.alignment, right, rtol=0, atol=1e-12)
    ntk = solution.ntk.expand_dims(
        [d for d in ("readout", "readout_", "output", "output_") if d not in solution.ntk.dims]
    )
    ntk = ntk.transpose(..., "step", "readout", "output", "sample", "readout_", "output_", "sample_").values
    flat = y.transpose(1, 2, 0).ravel()
    ntk = ntk.reshape(*ntk.shape[:-6], len(flat), len(flat))
    np.testing.assert_allclose(solution.ntk_alignment, wf.alignment(ntk, np.outer(flat, flat)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("network", "task"), CASES)
def test_alignment_is_the_cosine_with_the_labels(network, task):
    solution = ask(network, task)
    assert_aligned(solution, task)
    assert solution.alignment.dims == ("state" if network.weights == "tied" else "layer", "step")
    trial = experiment(network, task, richness=1.3, rate=0.1, steps=3, width=12, replicates=3, seed=0)
    assert_aligned(trial, task)
    row = wf.compare(ask(network, task, steps=3), trial, quantities="alignment")["alignment"]
    assert row.n_entries == 4 * network.depth


def test_labels_of_zero_have_no_direction():
    solution = ask(wf.DNN(2, "linear"), wf.Task(DEEP.x, 0 * DEEP.y))
    assert np.all(solution.alignment == 0) and np.all(solution.ntk_alignment == 0)


def gram(h, z, draws):
    """Φ and G of one readout from samples (…, draw, sample)."""
    g = (1 - np.tanh(h.values) ** 2) * z.values
    n = h.sizes[draws]
    return (np.einsum("...ps,...pq->...sq", a, a) / n for a in (np.tanh(h.values), g))


def test_samples_of_h_and_z_make_the_kernels():
    """To rounding: they are the paths, and the neurons, that kernels are averages of."""
    solution = test_contracts.sampled(at=[2, 7])
    assert solution.pregradient.dims == ("layer", "at", "path", "sample") and solution.pregradient.shape == (
        2,
        2,
        2048,
        2,
    )
    trial = experiment(
        wf.DNN(2, "tanh"),
        test_contracts.TASK,
        richness=1.3,
        rate=0.1,
        steps=7,
        width=10,
        replicates=3,
        seed=0,
        at=[2, 7],
    )
    assert trial.pregradient.dims == ("replicate", "layer", "at", "neuron", "sample")
    for found, draws in ((solution, "path"), (trial, "neuron")):
        for name, right in zip(
            ("feature", "gradient"), gram(found.preactivation, found.pregradient, draws), strict=True
        ):
            np.testing.assert_allclose(equal_times(found.data[f"{name}_kernel"], "at"), right, rtol=0, atol=1e-12)
    last = test_contracts.sampled(quantities=("preactivation", "pregradient"))
    for name in ("preactivation", "pregradient"):
        np.testing.assert_array_equal(last.data[name], solution.data[name].isel(at=-1))


@full
def test_readouts_and_outputs_have_their_own_pregradients():
    """Linear networks, where z = g: second moments of the draws are G within their error."""
    task = wf.Task(RNG.normal(size=(2, 2, 8)), RNG.normal(size=(2, 2, 2)))
    solution = ask(wf.RNN(2, "linear"), task, at=[7])
    assert solution.pregradient.dims == ("readout", "state", "at", "path", "sample", "output")
    z = solution.pregradient.isel(at=0).values
    moment = np.einsum("ckpso,dlpto->cdklsto", z, z) / z.shape[2]
    kernel = solution.gradient_kernel.isel(at=0, at_=0).values
    right = np.moveaxis(np.diagonal(kernel, axis1=-2, axis2=-1), -1, -1)
    assert np.abs(moment - right).max() < 8 * np.abs(right).max() / np.sqrt(z.shape[2])
    trial = experiment(wf.RNN(2, "linear"), task, richness=1.3, rate=0.1, steps=3, width=10, replicates=2, seed=0)
    z = trial.pregradient.values
    moment = np.einsum("rckpso,rdlpto->rcdklsto", z, z) / 10
    kernel = trial.gradient_kernel.isel(step=-1, step_=-1).values
    np.testing.assert_allclose(moment, np.diagonal(kernel, axis1=-2, axis2=-1), rtol=0, atol=1e-12)


def moments(data):
    """Of h and z, (replicate or batch, moment · layer · sample); the theory's paths are 8 batches, one after the other."""
    h, z = data.preactivation.values, data.pregradient.values
    if "replicate" not in data.dims:
        h, z = (v.reshape(len(v), 8, -1, v.shape[-1]).swapaxes(0, 1) for v in (h, z))
    orders = ((0, 2), (2, 0), (2, 2), (0, 4), (4, 0))
    return np.concatenate([(h**i * z**j).mean(axis=2).reshape(len(h), -1) for i, j in orders], axis=1)


@full
@pytest.mark.parametrize("name", ["tanh 2", "relu 2"])
def test_densities_meet_networks(name):
    """Moments of every layer and sample at the end, 2·wide − narrow; 15 % of the richness are seen."""
    network, task, physics = test_statistics.CASES[name]
    names = {"quantities": ("preactivation", "pregradient"), "progress": False}

    def predicted(physics):
        each = moments(predict(network, task, **physics, **names, paths=8192).data)
        return each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(8)

    wide, narrow = (
        moments(experiment(network, task, **physics, **names, width=w, replicates=300, seed=w).data) for w in (160, 80)
    )
    assert test_statistics.meets(predicted(physics), 2 * wide - narrow)
    assert not test_statistics.meets(predicted(test_statistics.richer(physics, 1.15)), 2 * wide - narrow)
