"""The effective action of m neurons of a layer, and its marginals over neurons and samples."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from widefield.answer.boundary import x64
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.theories.finite_width.expansion import TRUSTED
from widefield.theories.finite_width.untied.recursion import feeding_widths
from widefield.theories.finite_width.untied.solve import PAIR

SINGULAR = 1e-10  # smallest eigenvalue of a correlation matrix that can still be inverted to some digits
EPS = float(np.finfo(float).eps)
Array = np.ndarray


@x64
def couplings(
    solution: Solution, *, m: int = 1, samples: Sequence[int] | None = None, rtol: float = 1e-6, throw: bool = True
) -> Solution:
    r"""Quadratic and quartic couplings of ``m`` neurons of every layer, to first order in 1/n.

    .. math::
        S = \tfrac12 g^{ab}\sum_{i \le m} z_{ia}z_{ib} - \tfrac18 v^{(ab)(cd)}\sum_{i,j \le m} z_{ia}z_{ib}z_{jc}z_{jd}, \qquad
        g_{ab} = K_{ab} + \tfrac1n\left[G_{ab} - K^{cd}\left(\tfrac m2 V_{(ab)(cd)} + V_{(ac)(bd)}\right)\right]

    Eqs. (finite_width.8), (finite_width.9), (finite_width.10): the couplings run with the number ``m`` of neurons kept.
    Fields over (layer, sample, sample\_, …): ``metric`` :math:`g_{ab}`, ``quadratic`` :math:`g^{ab}` (its inverse to first
    order), ``quartic`` :math:`v^{(ab)(cd)} = V^{(ab)(cd)}/n` with indices raised by the inverse kernel.

    ``solution`` comes from `widefield.finite_width` and holds ``kernel``, ``correction`` and ``vertex``. ``samples``
    marginalizes over all other samples; the couplings of a part are not entries of the couplings of the whole.
    Error: within ``rtol`` (1e-6 by default) are the residual, which computes K + G/n and V/n back from the couplings, each
    relative to its scale, and the error of the kernels magnified by the condition number of their correlations.
    Limits: perturbative in m/n, and a note says where m V/(nK²) exceeds 0.3; m of the width or more is refused. Needs an
    invertible kernel. For v > 0 the quartic action is unbounded below: use it in perturbation theory, never normalize it.
    """
    start = time.perf_counter()
    n, index = _check(solution, m, samples)
    rtol = checks.tolerance("rtol", rtol, 1e-12)
    at = np.ix_(range(len(n)), index, index)
    K, G = (solution.data[name].values[at] for name in ("kernel", "correction"))
    V = solution.data["vertex"].values[np.ix_(range(len(n)), *[index] * 4)]
    inverse, magnified = _inverses(K)
    pull = 0.5 * m * np.einsum("lcd,labcd->lab", inverse, V) + np.einsum("lcd,lacbd->lab", inverse, V)
    shift = (G - pull) / n[:, None, None]
    quartic = np.einsum("lae,lbf,lcg,ldh,lefgh->labcd", *[inverse] * 4, V, optimize=True) / n.reshape(-1, 1, 1, 1, 1)
    fields = {
        "metric": (PAIR, K + shift),
        "quadratic": (PAIR, inverse - inverse @ shift @ inverse),
        "quartic": ((*PAIR, "sample__", "sample___"), quartic),
    }
    relative = np.einsum("laaaa->la", V) / np.einsum("laa->la", K) ** 2 / n[:, None]
    relative = m * float(relative.max())
    notes = (f"beyond the reach of the expansion: m V/(nK²) reaches {relative:.2g}, more than {TRUSTED:g}",)
    error = magnified * max(solution.certificate.error or 0.0, EPS)
    certificate = Certificate(
        "couplings",
        {"residual": Check(_residual(m, K, K + shift, quartic, G, V, n), rtol), "error": Check(error, rtol)},
        solution.failure,
        wall_time=time.perf_counter() - start,
        options={"m": int(m), "samples": index, "width": solution.certificate.options["width"], "rtol": rtol},
        notes=notes if relative > TRUSTED else (),
    )
    return make_solution(fields, certificate, solution.network, solution.task, throw=throw)


def _check(solution: Any, m: Any, samples: Any) -> tuple[np.ndarray, list[int]]:
    theory = solution.certificate.theory if isinstance(solution, Solution) else type(solution).__name__
    if theory != "finite_width":
        raise ValueError(f"`solution` must come from widefield.finite_width, got {theory}.")
    missing = [name for name in ("kernel", "correction", "vertex") if name not in solution.data]
    if missing:
        raise ValueError(f"`solution` must hold {', '.join(missing)}: name them in `quantities` of finite_width.")
    width = solution.certificate.options["width"]
    narrowest = min(solution.network.sizes(width))
    if checks.integer("m", m, 1) >= narrowest:
        raise ValueError(
            f"`m` must be well below the width {narrowest}: the couplings are an expansion in m/n, got {m}."
        )
    n_samples = solution.data.sizes["sample"]
    index = list(range(n_samples)) if samples is None else [checks.integer("samples", s, 0) for s in samples]
    if not index or len(set(index)) < len(index) or max(index) >= n_samples:
        raise ValueError(f"`samples` must be different indices 0 … {n_samples - 1}, got {samples!r}.")
    return feeding_widths(solution.network, width), index


def _residual(m: int, K: Array, metric: Array, quartic: Array, G: Array, V: Array, n: Array) -> float:
    """The two- and four-point functions of the action, to first order, against K + G/n and V/n."""
    loops = m * np.einsum("labcd,lea,lfb,lcd->lef", quartic, K, K, K, optimize=True)
    loops += 2 * np.einsum("labcd,lea,lfc,lbd->lef", quartic, K, K, K, optimize=True)
    two = metric + loops / 2 - K - G / n[:, None, None]
    four = np.einsum("labcd,lea,lfb,lgc,lhd->lefgh", quartic, *[K] * 4, optimize=True) - V / n.reshape(-1, 1, 1, 1, 1)
    scale = np.einsum("laa->la", K).max(axis=1)
    spread = np.abs(V).max(axis=(1, 2, 3, 4)) / n
    relative = np.abs(four).max(axis=(1, 2, 3, 4)) / np.where(spread > 0, spread, 1.0)
    return float(np.max([np.abs(two).max(axis=(1, 2)) / scale, relative]))


def _inverses(K: Array) -> tuple[Array, float]:
    """Inverse kernels, and by how much they magnify an error: the condition number of the correlations."""
    root = np.sqrt(np.einsum("laa->la", K))
    least, largest = 0.0, 1.0
    if root.all():
        eigenvalues = np.linalg.eigvalsh(K / root[:, :, None] / root[:, None, :])
        least, largest = float(eigenvalues.min()), float(eigenvalues.max())
    if least < SINGULAR:
        raise ValueError(
            "`samples` must be linearly independent: an action exists only for an invertible kernel, and the smallest "
            f"eigenvalue of its correlations is {least:.1e}. Leave out duplicate, opposite and zero inputs."
        )
    return np.linalg.inv(K), largest / least
