"""The empirical tangent kernel against a brute-force Jacobian of a network written out by hand."""

import math

import numpy as np
import pytest

import widefield as wf
from widefield.simulate.networks.streams import HIDDEN, streams
from widefield.simulate.networks.weights import DrawnWeights, ExternalInput, coordinates
from widefield.simulate.prior.fields import draw_readout

from ..students import agrees

ERF = np.vectorize(math.erf)
RUN = {"width": 3, "replicates": 2, "seed": 5}


def drawn_parameters(net, x, replicate):
    """The standard normal numbers of one network, as the simulator draws them."""
    sizes, keys = net.sizes(RUN["width"]), range(replicate, replicate + 1)
    rngs = streams(RUN["seed"], keys, HIDDEN)
    external = ExternalInput(net, sizes, coordinates(x, reduce=True), rngs, keep=True)
    weights = DrawnWeights(net, sizes, rngs, keep=True)
    h = np.zeros((1, len(x), sizes[0]))
    for a in range(net.depth):
        external.add(a, h)
        h = weights.advance(a + 1, ERF(h)) if a + 1 < net.depth else h
    readout = draw_readout(net, RUN["seed"], keys, sizes[-1], 1)
    groups = [weights.weights, external.input_weights, external.biases, [] if readout is None else list(readout)]
    return [[array[0] for array in group] for group in groups]


def outputs(net, z, groups):
    """f (state, sample), neuron by neuron and sample by sample."""
    weights, input_weights, biases, readout = groups
    pick = lambda group, a: group[0] if len(group) == 1 else group[a]  # noqa: E731
    result = np.zeros((net.depth, z.shape[1]))
    for alpha in range(z.shape[1]):
        phi = None
        for a, n in enumerate(net.sizes(RUN["width"])):
            h = np.zeros(n)
            for i in range(n):
                if phi is not None:
                    w = net.weight_variances[a - 1] / len(phi)
                    h[i] += math.sqrt(w) * sum(pick(weights, a - 1)[j, i] * phi[j] for j in range(len(phi)))
                if a < len(z):
                    h[i] += math.sqrt(net.input_variances[a]) * pick(input_weights, a)[:, i] @ z[a, alpha]
                if biases:
                    h[i] += math.sqrt(net.bias_variances[a]) * pick(biases, a)[0, i]
            phi = ERF(h)
            if net.readout_variance is None:
                result[a, alpha] = h[0]
            elif len(phi) == len(readout[0]):
                result[a, alpha] = math.sqrt(net.readout_variance / len(phi)) * phi @ readout[0][:, 0]
                result[a, alpha] += math.sqrt(net.readout_bias_variance) * readout[1][0, 0]
    return result


def brute_force_kernel(net, z, groups, step=1e-5):
    """Θ (state, state_, sample, sample_) from central differences in every single parameter."""
    kernel = 0.0
    for group in groups:
        for array in group:
            for index in np.ndindex(array.shape):
                value, sides = array[index], []
                for sign in (1, -1):
                    array[index] = value + sign * step
                    sides.append(outputs(net, z, groups))
                array[index] = value
                slope = (sides[0] - sides[1]) / (2 * step)
                kernel = kernel + np.einsum("sa,tb->stab", slope, slope)
    return kernel


NETWORKS = {
    "deep": wf.DNN(3, "erf", weight_variance=1.5, bias_variance=0.2, readout_bias_variance=0.6),
    "recurrent": wf.RNN(3, "erf", weight_variance=1.5, input_variance=2.0, readout_variance=0.7),
    "untied biases": wf.RNN(3, "erf", bias_variance=(0.1, 0.2, 0.3), biases="untied"),
    "untied inputs": wf.DNN(3, "erf", input_variance=(1.0, 0.5, 2.0), inputs="untied"),
    "neurons": wf.RNN(3, "erf", bias_variance=0.2, readout_variance=None),
    "depth one": wf.DNN(1, "erf", bias_variance=0.2),
}


@pytest.mark.parametrize(
    ("name", "n_driven"),
    [
        ("deep", 1),
        ("recurrent", 1),
        ("recurrent", 2),
        ("untied biases", 2),
        ("untied inputs", 2),
        ("neurons", 1),
        ("depth one", 1),
    ],
)
def test_kernel_is_the_jacobian_times_its_transpose(name, n_driven):
    net = NETWORKS[name]
    x = np.random.default_rng(0).standard_normal((2, n_driven, 3))
    several = wf.simulate.prior(net, wf.Task(x, supervised=tuple(range(net.depth))), **RUN, quantities=("ntk", "draw"))
    last = wf.simulate.prior(net, wf.Task(x), **RUN, quantities=("ntk",))
    assert several.certificate.options["method"] == "dense"
    groups = drawn_parameters(net, x, replicate=1)
    z = coordinates(x, reduce=True)
    np.testing.assert_allclose(several.draw[1, :, :, 0], outputs(net, z, groups), rtol=1e-11)
    exact = brute_force_kernel(net, z, groups)
    np.testing.assert_allclose(last.ntk[1], exact[-1, -1], rtol=1e-7, atol=1e-9)
    assert last.ntk.dims == ("replicate", "sample", "sample_")
    if net.depth > 1:
        assert several.ntk.dims == ("replicate", "state", "state_", "sample", "sample_")
        np.testing.assert_allclose(several.ntk[1], exact, rtol=1e-7, atol=1e-9)


def test_unequal_widths():
    net = wf.DNN(3, "erf", widths=(1.0, 2.0, 0.67), bias_variance=0.3)
    x = np.random.default_rng(1).standard_normal((2, 1, 4))
    ntk = wf.simulate.prior(net, wf.Task(x), **RUN, quantities="ntk").ntk
    groups = drawn_parameters(net, x, replicate=0)
    exact = brute_force_kernel(net, coordinates(x, reduce=True), groups)
    np.testing.assert_allclose(ntk[0], exact[-1, -1], rtol=1e-7, atol=1e-9)
    with pytest.raises(ValueError, match="quantities"):
        wf.simulate.prior(net, wf.Task(x, supervised=(0, 2)), **RUN, quantities="ntk")


def test_mean_of_a_linear_deep_network_is_exact_at_any_width():
    """Linear, b = 0: each of the depth + 1 parameter groups contributes u v w^(depth-1) x·x'/D on average."""
    net = wf.DNN(3, "linear", weight_variance=1.5, input_variance=1.2, readout_variance=0.8)
    x = np.random.default_rng(2).standard_normal((2, 4))
    ntk = wf.simulate.prior(net, wf.Task(x), width=6, replicates=3000, seed=0, quantities="ntk").ntk.values
    expected = 4 * 1.2 * 0.8 * 1.5**2 * (x @ x.T) / 4
    assert agrees(expected, ntk)
    assert not agrees(0.9 * expected, ntk)
