r"""Leading order in the squared richness: :math:`f_0 + \gamma_0^2f_2` of outputs, and of every kernel likewise.

.. math::
    \Phi^\ell(t,s) = \Phi^{\ell,0} + \gamma_0^2\Phi^{\ell,2}(t,s), \qquad
    G^\ell(t,s) = G^{\ell,0} + \gamma_0^2G^{\ell,2}(t,s)

Eqs. 12 and 144–166 of Bordelon & Pehlevan (2022) as corrected on the theory page. Deep linear networks have closed forms
(`perturbation_linear`); all others, recurrent ones among them, are measured.

Method: all quantities are even in the richness. The march is run at small ones, with the same paths at each, and the
polynomial in their squares through the results gives both orders. Averages over finitely many paths are not even, which
would leave an error of 1/richness: those are run with either sign, as if all backward noises had changed theirs. Outputs
and the tangent kernel take the order zero from the static limit, which is exact. Error: of order 1e-6 of the correction for
linear networks, otherwise the standard error over batches.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Status
from widefield.theories.dynamics import ensemble, observables, perturbation_linear
from widefield.theories.dynamics.answer import Answer, Estimate, over_batches
from widefield.theories.dynamics.problem import Problem
from widefield.theories.dynamics.run import TooFewPaths

# Richnesses, times the size of the labels, at which the orders are measured: the expansion is in this product. Smaller ones
# would lose digits to the directions that the march drops.
EXACT, SAMPLED = (0.05, 0.1, 0.15, 0.2, 0.25), (0.05, -0.05, 0.1, -0.1, 0.15, -0.15)
Batches = list[dict[str, Any]]


def perturbative(problem: Problem, options: ensemble.Options) -> Answer:
    """Outputs, loss, tangent kernel, and the kernels and alignments that are wanted, to order γ0²; with ``rtol``, four
    times the paths until standard errors of the outputs are within it."""
    if perturbation_linear.applies(problem):
        return perturbation_linear.solve(problem, options)
    rtol = options.sampling.rtol
    found = _orders(problem, options)
    while rtol is not None and found.error > rtol and found.status is Status.success and found.n_paths is not None:
        if 4 * found.n_paths > ensemble.MOST_PATHS:
            note = f"outputs are good to {found.error:.1e}, not to rtol={rtol:g}, with the most paths there are: raise `rtol`"
            return replace(found, status=Status.not_converged, notes=(*found.notes, note))
        found = _orders(problem, replace(options, sampling=replace(options.sampling, paths=4 * found.n_paths)))
    return found


def _orders(problem: Problem, options: ensemble.Options) -> Answer:
    """With the paths that are asked for, or those that directions need."""
    size = max(1.0, float(np.linalg.norm(problem.labels)))
    richnesses = tuple(point / size for point in (EXACT if problem.exact else SAMPLED))
    levels, n_paths = _levels(problem, options, richnesses)
    base = ensemble.static(problem)
    found = [ensemble.gather(problem, level, options, n_paths) for level in levels]
    failed = [answer for answer in (base, *found) if answer.status is not Status.success]
    if failed:
        return failed[0]
    zeroth, second = _weights(np.asarray(richnesses))

    def ordered(get: Callable[[dict[str, Any]], np.ndarray], known: Estimate | None = None) -> Estimate:
        values = [np.stack([get(batch) for batch in same]) for same in zip(*levels, strict=True)]
        weigh = lambda weights, v: np.tensordot(weights, v, axes=1)  # noqa: E731
        first = [weigh(zeroth, v) if known is None else known.value for v in values]
        return over_batches([a + problem.richness**2 * weigh(second, v) for a, v in zip(first, values, strict=True)])

    averages = {
        name: ordered(lambda batch, name=name: batch["seen"][name])  # type: ignore[misc]
        for name in observables.AVERAGED
        if name in options.wanted
    }
    prediction = ordered(lambda batch: batch["run"].prediction, base.prediction)
    return replace(
        base, prediction=prediction, loss=ordered(lambda batch: batch["run"].loss, base.loss),
        ntk=ordered(lambda batch: batch["run"].ntk, base.ntk) if options.ntk else None, kernels=averages,
        residual=found[-1].residual, n_paths=n_paths, diagnostics=found[-1].diagnostics,
        error=ensemble.relative_error(prediction, problem.readouts, least=problem.least_output),
    )  # fmt: skip


def _weights(richnesses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What gives the orders 0 and 2 of the even polynomial through values at the richnesses."""
    squares = (richnesses / richnesses.max()) ** 2
    inverse = np.linalg.pinv(np.vander(squares, len(set(squares)), increasing=True))
    return inverse[0], inverse[1] / richnesses.max() ** 2


def _levels(
    problem: Problem, options: ensemble.Options, richnesses: tuple[float, ...]
) -> tuple[list[Batches], int | None]:
    """Batches of every richness, with more paths where they are too few for one of them."""
    at = [replace(problem, richness=richness) for richness in richnesses]
    if problem.exact:
        return [[ensemble.one_batch(each, options, 0, 1)] for each in at], None
    n_paths = options.sampling.paths or ensemble.FIRST_PATHS
    while True:
        try:
            return [ensemble.all_batches(each, options, n_paths) for each in at], n_paths
        except TooFewPaths:
            if options.sampling.paths is not None or 2 * n_paths > ensemble.MOST_PATHS:
                raise
            n_paths *= 2
