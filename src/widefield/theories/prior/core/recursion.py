r"""The recursion of random deep and recurrent networks, Eq. (prior.1), pure JAX on arrays.

.. math::
    C^{ab}_{\alpha\beta} = M^b_{ab}\,b_a + M^w_{ab}\,w_a\,\langle\varphi(h^{a-1}_\alpha)\varphi(h^{b-1}_\beta)\rangle
                           + M^u_{ab}\,\frac{u_a}{D}\,x^a_\alpha\!\cdot x^b_\beta

Eqs. (prior.2), (prior.3), (prior.4), (prior.5): one mask each for weights, biases and inputs (1 if tied across states, δ_ab if not), a readout
that is never tied to the hidden states, and the tangent kernel

.. math::
    \Theta^{ab} = C^{ab} + M^w_{ab}\,w_a\,\langle\varphi'\varphi'\rangle^{a-1,b-1}\,\Theta^{a-1,b-1}.

Everything here is jit-able, vmap-able, and differentiable in the variances and in the overlaps of the inputs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from widefield.answer.boundary import require_dtype
from widefield.gaussian import AbstractKernel
from widefield.question.network import Network


class Variances(NamedTuple):
    """The network's variances as arrays; ``weight[0]`` is unused, a readout of None reads neurons directly."""

    weight: Float[Array, " depth"]
    input: Float[Array, " depth"]
    bias: Float[Array, " depth"]
    readout: Float[Array, ""] | None
    readout_bias: Float[Array, ""]


class Sharing(NamedTuple):
    """Which parameters are tied across states."""

    weights: bool
    biases: bool
    inputs: bool


class Block(NamedTuple):
    """Pair quantities for a block of samples; ``error`` is the largest estimate met, relative to its scale."""

    hidden: Array
    feature: Array
    readout: Array
    tangent: Array
    error: Array


def variances_of(network: Network, dtype: Any = "float64") -> Variances:
    """The variances of a `Network` as arrays."""
    cast = lambda v: jnp.asarray(v, dtype)  # noqa: E731
    weight = jnp.concatenate([jnp.zeros(1, dtype), cast(network.weight_variances)])
    readout = None if network.readout_variance is None else cast(network.readout_variance)
    bias = cast(network.readout_bias_variance)
    return Variances(weight, cast(network.input_variances), cast(network.bias_variances), readout, bias)


def sharing_of(network: Network) -> Sharing:
    """The masks of a `Network`."""
    return Sharing(network.weights == "tied", network.biases == "tied", network.inputs == "tied")


def overlaps(x: Float[Array, "sample state D"], y: Float[Array, "sample_ state D"]) -> Array:
    """Input overlaps x·y/D, shape (state, state_, sample, sample_)."""
    return jnp.einsum("iad,jbd->abij", x, y, precision="highest") / x.shape[-1]


def equal_overlaps(x: Float[Array, "sample state D"], y: Float[Array, "sample_ state D"]) -> Array:
    """Input overlaps x·y/D at equal states, shape (state, sample, sample_)."""
    return jnp.einsum("iad,jad->aij", x, y, precision="highest") / x.shape[-1]


def node_variances(
    kernel: AbstractKernel, variances: Variances, power: Float[Array, "driven sample"], dtype: Any = "float64"
) -> Float[Array, "depth sample"]:
    """Variance of every state of every sample; ``power`` is |x^a|²/D of the driven states."""
    require_dtype(dtype, power=power, weight_variance=variances.weight)
    depth = len(variances.weight)
    power = jnp.pad(power, ((0, depth - len(power)), (0, 0)))
    source = variances.bias[:, None] + variances.input[:, None] * power

    def step(q, layer):
        weight, source = layer
        q = source + weight * kernel.second_moment(q)
        return q, q

    rest = jax.lax.scan(step, source[0], (variances.weight[1:], source[1:]))[1]
    return jnp.concatenate([source[:1], rest])


def keep_duplicates(q: Array, p: Array, C: Array) -> Array:
    """Covariance of a node with itself or its duplicate is its variance: a rounding between the two grows in chaos.

    The value changes by some roundings at most; the derivative is that of the covariance.
    """
    same = (q == p) & (jnp.abs(C - q) <= 32 * jnp.finfo(C.dtype).eps * q)
    return jnp.where(same, C + jax.lax.stop_gradient(q - C), C)


def equal_state_pairs(
    kernel: AbstractKernel,
    variances: Variances,
    rows: dict[str, Array],
    columns: dict[str, Array],
    overlap: Float[Array, "driven pair"],
) -> tuple[Array, Array, Array]:
    """C, Θ and <φφ> of single pairs of samples at every state, (state, pair); tables are (..., state, pair)."""
    depth = len(variances.weight)
    overlap = jnp.pad(overlap, ((0, depth - len(overlap)), (0, 0)))
    source = variances.bias[:, None] + variances.input[:, None] * overlap

    def step(carry, a):
        value, tangent = carry
        C = source[a] + variances.weight[a] * value
        theta = C + variances.weight[a] * tangent
        at = lambda table: {k: jax.lax.dynamic_index_in_dim(v, a, v.ndim - 2, False) for k, v in table.items()}  # noqa: E731
        row, column = at(rows), at(columns)
        C = keep_duplicates(row["variance"], column["variance"], C)
        value, slope, _ = kernel.pair(row, column, C, True)
        return (value, slope * theta), (C, theta, value)

    start = jnp.zeros_like(source[0])
    return jax.lax.scan(step, (start, start), jnp.arange(depth))[1]


def equal_state_block(
    kernel: AbstractKernel,
    variances: Variances,
    rows: dict[str, Array],
    columns: dict[str, Array],
    overlap: Float[Array, "driven sample sample_"],
    tangent: bool = True,
    dtype: Any = "float64",
) -> Block:
    """Readout covariance and tangent kernel at the last state, from equal-state pairs alone.

    Equal-state blocks are the same for tied and untied weights and close among themselves, so memory does not grow
    with depth. ``rows`` and ``columns`` are the kernel's tables at all states, (..., state, sample).
    """
    require_dtype(dtype, overlap=overlap, weight_variance=variances.weight)
    return _along_diagonal(kernel, variances, rows, columns, overlap, 0, 0, len(variances.weight) - 1, tangent)


def state_pair_block(
    kernel: AbstractKernel,
    variances: Variances,
    sharing: Sharing,
    rows: dict[str, Array],
    columns: dict[str, Array],
    x: Float[Array, "sample driven D"],
    y: Float[Array, "sample_ driven D"],
    state: Any,
    state_: Any,
    tangent: bool = True,
    dtype: Any = "float64",
) -> Block:
    """One pair of states, from the states before them on their diagonal; untied weights leave nothing of these."""
    require_dtype(dtype, x=x, weight_variance=variances.weight)
    same = state == state_
    weights, biases, inputs = (jnp.where(same, 1.0, float(tied)).astype(x.dtype) for tied in sharing)
    masked = variances._replace(
        weight=weights * variances.weight, bias=biases * variances.bias, input=inputs * variances.input
    )
    n_steps = jnp.where(same | sharing.weights, jnp.minimum(state, state_), 0)
    first, first_ = state - n_steps, state_ - n_steps
    along = jnp.arange(x.shape[1])
    left, right = (jnp.take(v, s + along, axis=1, mode="fill", fill_value=0) for v, s in ((x, first), (y, first_)))
    overlap = equal_overlaps(left, right)
    return _along_diagonal(kernel, masked, rows, columns, overlap, first, first_, n_steps, tangent)


def _along_diagonal(
    kernel: AbstractKernel,
    variances: Variances,
    rows: dict[str, Array],
    columns: dict[str, Array],
    overlap: Float[Array, "driven sample sample_"],
    first: Any,
    first_: Any,
    n_steps: Any,
    tangent: bool,
) -> Block:
    """From the pair of states ``first``, ``first_`` in ``n_steps`` steps of both; ``overlap`` is of the inputs on the way."""
    n_driven = len(overlap)

    def averages(k, C):
        at = lambda v, a: jax.lax.dynamic_index_in_dim(v, a, v.ndim - 2, False)  # noqa: E731
        row = {name: at(v, first + k)[..., :, None] for name, v in rows.items()}
        column = {name: at(v, first_ + k)[..., None, :] for name, v in columns.items()}
        C = keep_duplicates(row["variance"], column["variance"], C)
        return kernel.pair(row, column, C, tangent)

    def source(k):
        value = variances.bias[first + k] + jnp.zeros_like(overlap[0])
        if n_driven > 1:
            value += jnp.where(k < n_driven, variances.input[first + k] * overlap[jnp.minimum(k, n_driven - 1)], 0)
        return value

    def step(k, carry):
        C, earlier, error = carry  # Θ = C + earlier: two outputs that share little work, so neither is computed twice
        value, slope, more = averages(k - 1, C)
        weight = variances.weight[first + k]
        earlier = weight * slope * (C + earlier) if tangent else earlier
        return source(k) + weight * value, earlier, jnp.maximum(error, jnp.max(more))

    start = variances.bias[first] + variances.input[first] * overlap[0]
    carry = start, jnp.zeros_like(start), jnp.zeros((), start.dtype)
    C, earlier, error = jax.lax.fori_loop(1, n_steps + 1, step, carry)
    value, slope, more = averages(n_steps, C)
    readout, tangent_kernel = _read_out(variances, C, C + earlier, value, slope)
    return Block(C, value, readout, tangent_kernel, jnp.maximum(error, jnp.max(more)))


def weighted_rows(
    kernel: AbstractKernel,
    variances: Variances,
    sharing: Sharing,
    rows: dict[str, Array],
    columns: dict[str, Array],
    x: Float[Array, "sample driven D"],
    y: Float[Array, "sample_ driven D"],
    weights: Float[Array, "state_ sample_ weight"],
    states: Array,
    states_: tuple[int, ...],
    tangent: bool = False,
    dtype: Any = "float64",
) -> tuple[Float[Array, "state sample weight"], Float[Array, ""]]:
    """Readout covariance or tangent kernel between ``states`` and ``states_``, times ``weights``; nothing of it is kept.

    Towards one state each pair of states is made alone, along its diagonal; towards several all are made at once.
    """
    field = "tangent" if tangent else "readout"
    if len(states_) > 1:
        options: dict[str, Any] = {"tangent": tangent, "dtype": dtype}
        block = all_states_block(kernel, variances, sharing, rows, columns, overlaps(x, y), **options)
        kept = getattr(block, field)[states][:, jnp.asarray(states_)]
        return jnp.einsum("abij,bjw->aiw", kept, weights, precision="highest"), block.error

    def toward(state):
        block = state_pair_block(kernel, variances, sharing, rows, columns, x, y, state, states_[0], tangent, dtype)
        return jnp.matmul(getattr(block, field), weights[0], precision="highest"), block.error

    values, errors = jax.lax.map(toward, states)
    return values, jnp.max(errors)


def all_states_block(
    kernel: AbstractKernel,
    variances: Variances,
    sharing: Sharing,
    rows: dict[str, Array],
    columns: dict[str, Array],
    overlap: Float[Array, "driven driven_ sample sample_"],
    tangent: bool = True,
    dtype: Any = "float64",
) -> Block:
    """Every pair of states: row a + 1 of the covariance is made from row a alone, shifted by one state."""
    require_dtype(dtype, overlap=overlap, weight_variance=variances.weight)
    depth = len(variances.weight)
    missing = depth - len(overlap)
    overlap = jnp.pad(overlap, ((0, missing), (0, missing), (0, 0), (0, 0)))
    same = jnp.eye(depth, dtype=overlap.dtype)
    mask = {name: jnp.ones_like(same) if tied else same for name, tied in sharing._asdict().items()}
    column = {k: v[..., :, None, :] for k, v in columns.items()}

    def source(a):
        bias = variances.bias[a] * mask["biases"][a]
        return bias[:, None, None] + (variances.input[a] * mask["inputs"][a])[:, None, None] * overlap[a]

    def step(carry, a):
        C, theta = carry
        row = {k: jax.lax.dynamic_index_in_dim(v, a, v.ndim - 2, False)[..., None, :, None] for k, v in rows.items()}
        C = keep_duplicates(row["variance"], column["variance"], C)
        value, slope, error = kernel.pair(row, column, C, tangent)
        readout, tangent_kernel = _read_out(variances, C, theta, value, slope)
        after = jnp.minimum(a + 1, depth - 1)
        weight = (variances.weight[after] * mask["weights"][after])[:, None, None]
        shift = lambda t: jnp.concatenate([jnp.zeros_like(t[:1]), t[:-1]])  # noqa: E731
        C_after = source(after) + weight * shift(value)
        theta_after = C_after + weight * shift(slope * theta)
        return (C_after, theta_after), Block(C, value, readout, tangent_kernel, jnp.max(error))

    first = source(0)
    _, block = jax.lax.scan(step, (first, first), jnp.arange(depth))
    return block._replace(error=jnp.max(block.error))


def _read_out(variances: Variances, C, theta, value, slope):
    """Covariance and tangent kernel of the outputs, Eqs. (prior.3), (prior.5)."""
    if variances.readout is None:
        return C, theta
    readout = variances.readout * value + variances.readout_bias
    return readout, readout + variances.readout * slope * theta


def output_kernel(
    kernel: AbstractKernel, variances: Variances, x: Float[Array, "sample driven D"], dtype: Any = "float64"
) -> tuple[Float[Array, "sample sample"], Float[Array, "sample sample"]]:
    """Covariance and tangent kernel of the last readout as a function of variances and inputs: the differentiable core.

    ``kernel`` comes from `widefield.gaussian.kernel_for`; inputs are (sample, driven state, D).
    """
    require_dtype(dtype, x=x, weight_variance=variances.weight)
    power = jnp.einsum("iad,iad->ai", x, x) / x.shape[-1]
    table = kernel.table(node_variances(kernel, variances, power, dtype))
    block = equal_state_block(kernel, variances, table, table, equal_overlaps(x, x), dtype=dtype)
    return block.readout, block.tangent
