"""The forward pass against a network written out by hand; it compiles once, whatever the variances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.simulate.networks.forward import Parameters, forward, preactivations, prior_scales, tangent_kernel
from widefield.simulate.networks.weights import coordinates

from ...contracts import assert_gradient_is_difference, assert_jit_is_plain, assert_vmap_is_loop
from .test_tangent import NETWORKS, RUN, drawn_parameters, outputs

X = np.random.default_rng(0).standard_normal((2, 2, 3))
ERF = jax.scipy.special.erf


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def network_of(name, x=X):
    net = NETWORKS[name]
    x = x[:, : net.depth]
    groups = drawn_parameters(net, x, replicate=0)
    return net, coordinates(x, reduce=True), groups, net.sizes(RUN["width"])


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_is_the_network_by_hand(name):
    net, z, groups, sizes = network_of(name)
    scales = prior_scales(net, sizes, dimension=1)
    values = forward(Parameters(*groups), z, scales, ERF, sizes, tuple(range(net.depth)))
    np.testing.assert_allclose(values[..., 0], outputs(net, z, groups), rtol=1e-12)
    np.testing.assert_array_equal(forward(Parameters(*groups), z, scales, ERF, sizes), values[-1:])


def test_input_scale_carries_the_dimension():
    net, _, (weights, _, biases, readout), sizes = network_of("recurrent")
    drawn = Parameters(weights, [np.random.default_rng(1).standard_normal((3, sizes[0]))], biases, readout)
    x = X.swapaxes(0, 1)
    raw = forward(drawn, x, prior_scales(net, sizes, dimension=3), ERF, sizes)
    np.testing.assert_allclose(raw, forward(drawn, x / np.sqrt(3), prior_scales(net, sizes, 1), ERF, sizes), rtol=1e-13)


def test_another_readout_scale():
    """The mean-field readout √v/(γn) is the prior's divided by γ√n."""
    net, z, groups, sizes = network_of("recurrent")
    scales = prior_scales(net, sizes, dimension=1)
    mean_field = scales._replace(readout=np.sqrt(net.readout_variance) / (0.7 * sizes[-1]))
    drawn = Parameters(*groups)
    plain, scaled = (forward(drawn, z, s, ERF, sizes) for s in (scales, mean_field))
    np.testing.assert_allclose(scaled, plain / (0.7 * np.sqrt(sizes[-1])), rtol=1e-13)


def test_unequal_widths_and_several_outputs():
    sizes = (4, 6, 5)
    net = wf.DNN(3, "erf", widths=(4, 6, 5))
    rng = np.random.default_rng(2)
    shapes = [[(4, 6), (6, 5)], [(3, 4)], [], [(5, 2), (1, 2)]]
    drawn = Parameters(*([rng.standard_normal(s) for s in group] for group in shapes))
    scales = prior_scales(net, sizes, dimension=1)
    hidden = preactivations(drawn, X[None, 0], scales, ERF, sizes)
    assert [h.shape for h in hidden] == [(2, 4), (2, 6), (2, 5)]
    assert forward(drawn, X[None, 0], scales, ERF, sizes).shape == (1, 2, 2)


def test_contracts():
    net, z, groups, sizes = network_of("untied biases")
    args = jax.tree.map(jnp.asarray, (Parameters(*groups), z, prior_scales(net, sizes, dimension=1)))

    def core(parameters, inputs, scales):
        return forward(parameters, inputs, scales, jnp.tanh, sizes, (0, 2))

    assert_jit_is_plain(core, *args)
    assert_vmap_is_loop(core, *jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), args))
    assert_gradient_is_difference(core, *args)


def test_the_tangent_kernel_compiles_once_for_all_variances():
    traced = []
    phi = wf.Activation(lambda h: traced.append(h) or jnp.tanh(h), name="counted")

    def ntk(**variances):
        return wf.simulate.prior(wf.RNN(3, phi, **variances), wf.Task(X), **RUN, quantities="ntk").ntk.values

    first = ntk(weight_variance=1.0, bias_variance=0.2, readout_variance=1.0)
    n_traced = len(traced)
    other = ntk(weight_variance=1.7, bias_variance=0.1, readout_variance=0.4)
    assert 0 < n_traced == len(traced)
    assert not np.allclose(first, other)


def test_single_precision_stays_single():
    net, z, groups, sizes = network_of("deep")
    single = jax.tree.map(lambda v: jnp.asarray(v, "float32"), (Parameters(*groups), z, prior_scales(net, sizes, 1)))
    assert forward(*single, ERF, sizes).dtype == tangent_kernel(*single, ERF, sizes).dtype == jnp.float32
