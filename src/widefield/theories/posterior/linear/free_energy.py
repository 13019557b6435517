r"""Linear networks: the free energy of the posterior over positive semi-definite kernels.

.. math::
    F(H) = \tfrac12\mathrm{tr}\,Y(vH_{SS}+\kappa)^{-1} + \tfrac12\mathrm{tr}\,HK^{-1} - \tfrac12\ln|H| + \tfrac12\ln|K|,
    \qquad K = M^w w\,H^- + M^u u\,X^-

Eq. (posterior.7), less depth·P/2, so that it vanishes without labels. Coordinates: :math:`H = R\,S\,R^{\!T}` with
:math:`RR^{\!T} = H_0` of the random network, thin. The range of :math:`H` and of :math:`K` is that of :math:`H_0`
whatever the labels; repeated inputs and more samples than dimensions need no jitter.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from widefield.solvers import definite
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.problem import Array, Problem, all_labels, by_state, is_tied

Stack = Float[Array, "block rank rank"]
RANK = 1e-12  # of the largest eigenvalue of the correlations: what lies below is not there


class Joint(NamedTuple):
    r"""One block of all nodes. ``mirror`` is what :math:`W \to -W` does to the coordinates where a search is to keep that
    symmetry, otherwise 1; ``seen`` are the directions of the labels that the network can fit (`seen_labels`)."""

    problem: Problem
    root: Float[Array, "1 node rank"]
    inverse: Float[Array, "1 rank node"]
    mirror: Float[Array, "1 rank rank"]
    seen: Float[Array, "label direction"]

    def covariance(self, H: Array) -> Array:
        return core.covariance(self.problem, H[0])[None]

    def returned(self, Q: Array) -> Array:
        return core.returned(self.problem, Q[0])[None]

    def labels(self, S: Stack) -> tuple[Array, Stack]:
        """Energy, and what pulls on the coordinates."""
        rows = self.root[0][self.problem.supervised]
        energy, pull = response(S[0], rows, self.seen, self.problem.labels, self.problem)
        return energy, pull[None]


class Separate(NamedTuple):
    r"""One block per state, for untied weights with nothing that joins two states.

    Inputs and labels give the off-diagonal blocks no reason to differ from zero: they enter :math:`-\ln|H|` alone,
    which is least without them (Fischer's inequality). ``labels_of`` are (state, sample, output), zero where none.
    """

    problem: Problem
    input_kernel: Float[Array, "state sample sample"]
    labels_of: Float[Array, "state sample output"]
    root: Float[Array, "state sample rank"]
    inverse: Float[Array, "state rank sample"]
    seen: Float[Array, "state sample direction"]

    def covariance(self, H: Array) -> Array:
        w = self.problem.weight.diagonal()[1:, None, None]
        return self.input_kernel + core.library(H).pad(w * H[:-1], ((1, 0), (0, 0), (0, 0)))

    def returned(self, Q: Array) -> Array:
        w = self.problem.weight.diagonal()[1:, None, None]
        return core.library(Q).pad(w * Q[1:], ((0, 1), (0, 0), (0, 0)))

    def labels(self, S: Stack) -> tuple[Array, Stack]:
        return response(S, self.root, self.seen, self.labels_of, self.problem)


Layout = Joint | Separate


def response(S: Array, rows: Array, seen: Array, labels: Array, problem: Problem) -> tuple[Array, Array]:
    r"""Energy :math:`\tfrac12\mathrm{tr}\,YR` and the pull :math:`\tfrac v2\rho^{\mathsf T}RYR\rho` on S, with :math:`\rho` the ``rows``.

    Labels that no kernel can fit (more samples than dimensions) cost :math:`|y|^2/2\kappa` and pull on nothing: they are
    taken off first, because :math:`\rho^{\mathsf T}Ry` would otherwise lose as many digits as they are large.
    """
    v, kappa, turn = problem.readout, problem.temperature, lambda A: A.swapaxes(-1, -2)
    rows, y = turn(seen) @ rows, turn(seen) @ labels
    noisy = v * rows @ S @ turn(rows)
    noise = kappa * np.eye(noisy.shape[-1], dtype=noisy.dtype)[(None,) * (noisy.ndim - 2)]
    Ry = definite.inverse(noisy + noise)[0] @ y
    pulled, unseen = turn(rows) @ Ry, labels - seen @ y
    return 0.5 * (y * Ry).sum() + 0.5 * (unseen**2).sum() / kappa, 0.5 * v * pulled @ turn(pulled)


def seen_labels(rows: np.ndarray) -> np.ndarray:
    """Orthonormal directions (label, direction) that the rows (label, rank) span; all of them where that is every one."""
    U, size, _ = np.linalg.svd(rows, full_matrices=False)
    keep = size > RANK * size.max(initial=1e-300)
    return np.eye(len(rows)) if keep.sum() == len(rows) else U[:, keep]


def kernel(layout: Layout, S: Stack) -> Array:
    """H from its coordinates, block by block."""
    return layout.root @ S @ layout.root.swapaxes(-1, -2)


def free_energy(S: Stack, layout: Layout) -> tuple[Array, Stack]:
    r"""F and dF/dS by Eq. (posterior.8), what `solvers.definite` minimizes.

    .. math::  \frac{dF}{dH} = -\tfrac v2 S^{\!T}RYRS + \tfrac12K^{-1} - \tfrac12H^{-1}
               + \tfrac12[M^w w\,(K^{-1} - K^{-1}HK^{-1})]^+
    """
    H = kernel(layout, S)
    J, J_ = layout.inverse, layout.inverse.swapaxes(-1, -2)
    R, R_ = layout.root, layout.root.swapaxes(-1, -2)
    K = J @ layout.covariance(H) @ J_
    K = 0.5 * (K + jnp.swapaxes(K, -1, -2))
    K_inverse, K_log = definite.inverse(K)
    S_inverse, S_log = definite.inverse(S)
    energy, pull = layout.labels(S)
    entropy = 0.5 * (jnp.sum(S * K_inverse) - S.shape[0] * S.shape[1] + jnp.sum(K_log - S_log))
    back = layout.returned(J_ @ (0.5 * (K_inverse - K_inverse @ S @ K_inverse)) @ J)
    return energy + entropy, R_ @ back @ R - pull + 0.5 * (K_inverse - S_inverse)


@np.errstate(over="ignore", invalid="ignore")
def size_of_terms(S: np.ndarray, layout: Layout) -> float:
    """The largest entry of what the gradient adds, where H is the identity: the unit of its roundings."""
    J, C, H = layout.inverse, definite.root_on_host(S), kernel(layout, S)
    K_inverse = definite.inverse(J @ layout.covariance(H) @ J.swapaxes(-1, -2))[0]
    onto = lambda Q: C.swapaxes(-1, -2) @ Q @ C  # noqa: E731
    back = lambda Q: layout.root.swapaxes(-1, -2) @ layout.returned(J.swapaxes(-1, -2) @ Q @ J) @ layout.root  # noqa: E731
    adds = K_inverse, layout.labels(S)[1], back(K_inverse), back(K_inverse @ S @ K_inverse)
    return float(np.max([np.abs(onto(term)).max(initial=1.0) for term in adds]))


def random_kernel(problem: Problem) -> np.ndarray:
    r"""H of the random network, :math:`H_0 = K(H_0)`: exact after as many steps as there are states."""
    H = np.zeros_like(problem.input_kernel)
    for _ in range(problem.depth):
        H = problem.input_kernel + core.shifted(problem, H)
    return H


def parity(problem: Problem) -> np.ndarray:
    """+1 on nodes of even states, −1 on those of odd ones."""
    return np.repeat((-1.0) ** np.arange(problem.depth), problem.n_samples)


def unbroken(E: Stack, layout: Layout) -> Stack:
    """The part of E that the layout's mirror does not change."""
    if isinstance(layout, Separate):
        return E
    return 0.5 * (E + layout.mirror @ E @ layout.mirror.swapaxes(-1, -2))


def layout_of(problem: Problem) -> Layout:
    """Coordinates for a problem; one block per state where nothing joins the states."""
    H0, labels = random_kernel(problem), all_labels(problem)
    if (
        not is_tied(problem)
        and _is_separate(problem, problem.input_kernel)
        and _is_separate(problem, labels @ labels.T)
    ):
        own = lambda matrix: np.stack([by_state(problem, matrix)[a, :, a] for a in range(problem.depth)])  # noqa: E731
        root, inverse = roots(own(H0))
        if root is not None:
            each = labels.reshape(problem.depth, problem.n_samples, -1)
            seen = np.stack([seen_labels(rows) for rows in root])
            return Separate(problem, own(problem.input_kernel), each, root, inverse, seen)
    return joint_layout(problem)


def joint_layout(problem: Problem) -> Joint:
    """One block, whatever the problem."""
    root, inverse = roots(random_kernel(problem)[None])
    return Joint(problem, root, inverse, np.eye(root.shape[-1])[None], seen_labels(root[0][problem.supervised]))


def mirrored(layout: Joint) -> Joint:
    """The same coordinates for a search among kernels without odd lags."""
    return layout._replace(mirror=layout.inverse @ (parity(layout.problem)[:, None] * layout.root))


def joined_states(problem: Problem) -> np.ndarray:
    r"""Pairs of states that may correlate, (state, state_); without tied weights only labels and inputs join states.

    Where neither does, :math:`h^a \to -h^a` is a symmetry of every untied state by itself: its blocks are exactly zero.
    """
    if is_tied(problem) or not _is_separate(problem, problem.input_kernel):
        return np.ones((problem.depth, problem.depth), bool)
    labels = all_labels(problem)
    return np.eye(problem.depth, dtype=bool) | np.any(by_state(problem, labels @ labels.T) != 0, axis=(1, 3))


def _is_separate(problem: Problem, matrix: np.ndarray) -> bool:
    joined = np.any(by_state(problem, matrix) != 0, axis=(1, 3))
    return not np.any(joined & ~np.eye(problem.depth, dtype=bool))


def roots(blocks: np.ndarray) -> tuple:
    """Thin R with RR^T = H0 and its left inverse, block by block; None where the ranks differ."""
    scale = np.sqrt(np.diagonal(blocks, axis1=1, axis2=2))
    silent, scale = scale == 0, np.where(scale > 0, scale, 1)
    values, vectors = np.linalg.eigh(blocks / scale[:, :, None] / scale[:, None, :])
    keep = values > RANK * np.max(values, axis=1, keepdims=True, initial=1e-300)
    ranks = keep.sum(axis=1)
    if len(set(ranks)) > 1:
        return None, None
    rank = int(ranks[0])
    values, vectors = values[:, -rank:] if rank else values[:, :0], vectors[:, :, len(scale[0]) - rank :]
    vectors[silent] = 0  # roundings
    root = scale[:, :, None] * vectors * np.sqrt(values)[:, None, :]
    inverse = np.swapaxes(vectors, 1, 2) / np.sqrt(values)[:, :, None] / scale[:, None, :]
    return root, inverse
