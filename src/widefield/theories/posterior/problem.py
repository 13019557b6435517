r"""The question of the posterior as arrays, and the maps that every solver of it shares.

.. math::
    K(\Phi)_{ab} = M^w_{ab}\,w_a\,\Phi_{a-1,b-1} + M^u_{ab}\,u_a\,\frac{x^a\!\cdot x^b}{D}, \qquad
    R = (v\,\Phi_{SS} + \kappa)^{-1}

Eqs. (posterior.1), (posterior.2), (posterior.3): Bauer et al. (the poster); Appendix K.3 of Bordelon & Pehlevan (2022) for untied
weights. Nodes (state, sample) are flattened state-major. One mask each for weights and inputs: 1 if tied, δ_ab if not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from widefield.answer.boundary import memory_budget, require_memory
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.solvers import definite
from widefield.solvers.definite import MAX_LANCZOS

Array = Any  # NumPy or JAX, whichever comes in


class Problem(NamedTuple):
    r"""``input_kernel`` :math:`M^u u X^-`; ``weight`` :math:`M^w w`, its first row and column zero because no weight leads
    into the first state; ``supervised``, the flat nodes that have ``labels``."""

    input_kernel: Float[Array, "node node"]
    weight: Float[Array, "state state"]
    readout: Float[Array, ""]
    temperature: Float[Array, ""]
    supervised: Int[Array, " label"]
    labels: Float[Array, "label output"]

    @property
    def depth(self) -> int:
        return self.weight.shape[0]

    @property
    def n_samples(self) -> int:
        return self.input_kernel.shape[0] // self.weight.shape[0]


def problem_of(network: Any, task: Any, temperature: float) -> Problem:
    """The arrays of a `Network` and a `Task`, once both are known to be covered by the theory."""
    check(network, task)
    kappa = checks.nonnegative("temperature", temperature)
    if kappa == 0:
        raise ValueError("`temperature` must be positive, got 0: the posterior needs noise on the labels.")
    n_nodes = network.depth * task.n_samples
    need = memory_of_kernels(network, task)
    fewer = int(task.n_samples * min(1.0, np.sqrt(memory_budget() / need)))
    require_memory(need, f"The kernels of {n_nodes} nodes (depth × samples)", f"About {fewer} samples would fit.")
    x = task.sequences(network.depth)
    states = task.supervised_states(network.depth)
    labels = np.moveaxis(task.labels(), 1, 0)  # (supervised state, sample, output)
    supervised = np.concatenate([np.arange(task.n_samples) + task.n_samples * s for s in states])
    w = np.concatenate([[0.0], network.weight_variances])
    tied = np.where((w[:, None] > 0) & (w > 0), w[-1], 0.0)
    return Problem(
        input_kernel=input_kernel_between(network, x, x),
        weight=np.diag(w) if network.weights == "untied" else tied,
        readout=np.asarray(network.readout_variance, float),
        temperature=np.asarray(kappa),
        supervised=supervised,
        labels=labels.reshape(len(supervised), -1),
    )


def memory_of_kernels(network: Network, task: Task) -> int:
    """Bytes that a search for kernels holds: some thirty of them and, for a linear network, the basis in which its Hessian's
    eigenvalues are found (`solvers.definite`), twice."""
    n_nodes, n_driven, dimension = network.depth * task.n_samples, *task.sequences(network.depth).shape[1:]
    kernels = 30 * n_nodes**2
    if not network.activation.known_as("linear"):
        return 8 * kernels
    separate = network.weights == "untied" and n_driven == 1
    rank = min(task.n_samples, dimension) if separate else min(n_nodes, network.depth * n_driven * dimension)
    unknowns = (network.depth if separate else 1) * rank * (rank + 1) // 2
    return 8 * (kernels + 2 * min(unknowns, MAX_LANCZOS + 1) * unknowns + 80 * rank**2)


def library(*arrays: Array) -> Any:
    """JAX where it traces or holds one of the arrays, otherwise NumPy, which has nothing to compile."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def scaled(problem: Problem, along: str, factor: Array) -> Problem:
    """The problem with its labels or its temperature multiplied by ``factor``."""
    if along == "labels":
        return problem._replace(labels=problem.labels * factor)
    return problem._replace(temperature=problem.temperature * factor)


def all_labels(problem: Problem) -> np.ndarray:
    """Labels over all nodes, zero where there are none."""
    return _all_nodes(problem, np.asarray(problem.labels), len(problem.input_kernel))


def odd_lags(problem: Problem) -> np.ndarray:
    """Pairs of nodes whose states are an odd number apart."""
    state = np.repeat(np.arange(problem.depth), problem.n_samples)
    return (state[:, None] - state) % 2 == 1


def has_sign_symmetry(problem: Problem) -> bool:
    """Whether W → −W leaves inputs and labels alone: they join no states of odd distance."""
    odd, labels = odd_lags(problem), all_labels(problem)
    return not np.any(np.asarray(problem.input_kernel)[odd]) and not np.any((labels @ labels.T)[odd])


def is_tied(problem: Problem) -> bool:
    """Whether weights join different states."""
    return bool(np.any(problem.weight != np.diag(np.diagonal(problem.weight))))


def is_symmetric(problem: Problem) -> bool:
    """Whether W → −W is a symmetry of a tied network that is linear or odd."""
    return is_tied(problem) and has_sign_symmetry(problem)


def check(network: Any, task: Any) -> None:
    """Refuse what the posterior does not cover, by name."""
    network.refuse_branch("posterior")
    if task.y is None:
        raise ValueError("`task` must have labels `y` for the posterior.")
    for name in ("bias_variance", "readout_bias_variance"):
        if np.any(np.asarray(getattr(network, name)) != 0):
            raise ValueError(f"`{name}` must be 0: the posterior covers networks without biases.")
    if not network.readout_variance:
        raise ValueError(
            f"`readout_variance` must be positive for the posterior, got {network.readout_variance}: its labels are "
            "read out with weights of variance v/n²."
        )
    if len(set(network.relative_widths)) > 1:
        raise ValueError("`widths` must all be equal: the posterior covers networks of one width.")


def input_kernel_between(network: Network, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """M^u u x·y/D between the nodes of two sets of sequences (sample, driven state, D), (node, node_)."""
    depth, n_driven = network.depth, x.shape[1]
    u = network.input_variances
    overlap = np.zeros((depth, len(x), depth, len(y)))
    overlap[:n_driven, :, :n_driven] = np.einsum("pad,qbd->apbq", x, y, optimize=True) / x.shape[-1]
    mask = np.full((depth, depth), u[0]) if network.inputs == "tied" else np.diag(u)
    return (mask[:, None, :, None] * overlap).reshape(depth * len(x), depth * len(y))


def input_kernels_of_test(network: Network, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """`input_kernel_between` test and training inputs, and among test inputs."""
    x = task.sequences(network.depth, test=True)
    train, test = x[: task.n_samples], x[task.n_samples :]
    return input_kernel_between(network, test, train), input_kernel_between(network, test, test)


def correlation_forms(problem: Problem, a: int, b: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """tr Φ_ab, tr Φ_aa and tr Φ_bb as sums over entries of Φ times these matrices."""
    unit, one = np.eye(problem.depth), np.eye(problem.n_samples)
    form = lambda i, j: np.kron(0.5 * (np.outer(unit[i], unit[j]) + np.outer(unit[j], unit[i])), one)  # noqa: E731
    return form(a, b), form(a, a), form(b, b)


def correlation(matrix: Array, forms: tuple[Array, ...]) -> tuple[Array, Array]:
    r""":math:`m = \mathrm{tr}\Phi_{ab}/\sqrt{\mathrm{tr}\Phi_{aa}\mathrm{tr}\Phi_{bb}}` and its derivative, Eq. (posterior.17)."""
    x, y, z = ((form * matrix).sum() for form in forms)
    size = library(matrix).sqrt(y * z)
    m = x / size
    between, first, second = forms
    return m, between / size - 0.5 * m * (first / y + second / z)


def by_state(problem: Problem, matrix: Array) -> Array:
    """A (node, node_) matrix as (state, sample, state_, sample_)."""
    depth, (rows, columns) = problem.depth, matrix.shape
    return matrix.reshape(depth, rows // depth, depth, columns // depth)


def by_pairs(problem: Problem, matrix: np.ndarray) -> np.ndarray:
    """A (node, node_) matrix as (state, state_, sample, sample_)."""
    return np.ascontiguousarray(np.moveaxis(by_state(problem, matrix), 2, 1))


def shifted(problem: Problem, feature: Array) -> Array:
    r""":math:`M^w w\,\Phi^-`: what the weights pass on, (Φ^-)_{ab} = Φ_{a−1,b−1}; any two sets of nodes."""
    blocks = by_state(problem, feature)
    later = library(feature).pad(blocks[:-1, :, :-1], ((1, 0), (0, 0), (1, 0), (0, 0)))
    return (problem.weight[:, None, :, None] * later).reshape(feature.shape)


def returned(problem: Problem, matrix: Array) -> Array:
    r""":math:`[\,M^w w\,Q\,]^+`, the adjoint of `shifted`: block (a, b) is :math:`w_{a+1}Q_{a+1,b+1}`."""
    blocks = problem.weight[:, None, :, None] * by_state(problem, matrix)
    return library(blocks).pad(blocks[1:, :, 1:], ((0, 1), (0, 0), (0, 1), (0, 0))).reshape(matrix.shape)


def covariance(problem: Problem, feature: Array) -> Array:
    r""":math:`K(\Phi)`: the covariance of a neuron's states given the features of the layer before."""
    return shifted(problem, feature) + problem.input_kernel


def label_response(problem: Problem, feature: Array) -> tuple[Array, Array]:
    r""":math:`Ry` and the matrix :math:`\frac v2 S^{\!T}RYRS` that pulls on the features, over all nodes."""
    S, eye = problem.supervised, np.eye(len(problem.supervised), dtype=feature.dtype)
    Ry = definite.inverse(problem.readout * feature[S][:, S] + problem.temperature * eye)[0] @ problem.labels
    pull = _all_nodes(problem, Ry, len(feature))
    return Ry, 0.5 * problem.readout * pull @ pull.T


def _all_nodes(problem: Problem, rows: Array, n_nodes: int) -> Array:
    """Rows of the supervised nodes among all, which are zero elsewhere."""
    zero = library(rows).zeros((n_nodes, rows.shape[1]), rows.dtype)
    if isinstance(zero, jax.Array):
        return zero.at[problem.supervised].set(rows)
    zero[problem.supervised] = rows
    return zero


def energy(problem: Problem, feature: Array) -> Array:
    r""":math:`\tfrac12\,\mathrm{tr}\,Y(v\Phi_{SS}+\kappa)^{-1}` per neuron."""
    return 0.5 * (problem.labels * label_response(problem, feature)[0]).sum()


def predict(problem: Problem, feature: Array, rows: Array) -> Array:
    r""":math:`f_* = v\,\Phi_{*S}\,R\,y`, Eq. (posterior.6); ``rows`` are features (node_, training node) of any nodes."""
    return problem.readout * rows[:, problem.supervised] @ label_response(problem, feature)[0]
