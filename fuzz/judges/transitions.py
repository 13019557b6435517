"""Transitions of linear recurrent networks against their closed curve, nonlinear ones and landscapes against the posterior."""

import numpy as np
from scipy.optimize import brentq, minimize_scalar

import widefield as wf
from fuzz import questions as ask
from fuzz.questions import Question
from fuzz.verdicts import Defect, answer, close


def draw(rng: np.random.Generator, depths: tuple = (3, 4, 5, 8), activation: str = "linear") -> Question:
    words = {"kind": "RNN", "depth": ask.pick(rng, *depths), "activation": activation}
    words |= {name: ask.spread(rng, 0.5, 2.0) for name in ("weight_variance", "input_variance", "readout_variance")}
    x = rng.normal(size=(1, int(rng.integers(1, 4)))).round(2) + 0.3
    kappa = ask.spread(rng, 0.02, 1e4 if activation == "linear" else 5.0)
    return Question(words, x.tolist(), ask.labels(rng, 1, ask.spread(rng, 0.3, 3.0)), call={"temperature": kappa})


def scales(q: Question) -> tuple[int, float, float]:
    """L, the kernel v w^(L−1) k of the random network, and its temperature in that unit."""
    net, x = q.net, q.task.x[0]
    unit = net.readout_variance * np.prod(net.weight_variances) * net.input_variances[0] * x @ x / len(x)
    return net.depth, unit, q.call["temperature"] / unit


def instability(q: Question) -> float:
    """NaN where there is none."""
    curve = lambda *nouns, **options: wf.transition(*nouns, **options).curve  # noqa: E731
    found = answer(curve, q.net, q.task, gaps=True, points=8, **q.call)  # where a branch does not exist
    at = found.certificate.diagnostics["instability"]
    return np.nan if at is None else at


def closed_curve(q: Question) -> None:
    """Eqs. (posterior.12), (posterior.13): the largest λ(s) with s ≤ s_c is the last incoherent minimum."""
    at = instability(q)
    L, unit, kappa = scales(q)
    strength = lambda s: (s - 1) * (s**L + kappa) ** 2 / s**L  # noqa: E731
    grid = np.linspace(1, (L - 1) / (L - 2), 4001)
    best = int(np.argmax(strength(grid)))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    fold = minimize_scalar(lambda s: -strength(s), bounds=around, method="bounded", options={"xatol": 1e-13})
    largest = max(strength(grid[-1]), -fold.fun)
    expected = np.sqrt(largest * unit) / abs(q.y[0])
    if 1e-4 < expected < 1e4:
        close("instability", at, expected, 1e-6 * expected)


def draw_curved(rng: np.random.Generator) -> Question:
    return draw(rng, (2, 3), ask.pick(rng, "linear", "linear", "erf", "sin"))


def on_both_sides(q: Question) -> None:
    """The incoherent state is a minimum below the instability and none above."""
    at = instability(q)
    for factor in (0.98, 1.02) if np.isfinite(at) else ():
        task = wf.Task(q.task.x, factor * at * q.task.y)
        state = answer(wf.posterior, q.net, task, branch="incoherent", throw=False, **q.call)
        stable = state.status is wf.Status.success and float(state.stability) > 0
        if state.status in (wf.Status.success, wf.Status.saddle) and stable != (factor < 1):
            raise Defect(
                f"at {factor} of the instability {at:.6g} the incoherent state has stability {state.stability}"
            )


def landscape(q: Question) -> None:
    """Its slope is its field, and the posterior's free energy is nowhere above it."""
    values = np.linspace(-0.6, 0.6, 25)
    found = answer(wf.landscape, q.net, q.task, values=values, **q.call)
    energy, field = found.free_energy.values, found.field.values
    slope = (energy[:-4] - 8 * energy[1:-3] + 8 * energy[3:-1] - energy[4:]) / (12 * (values[1] - values[0]))
    close("slope of the free energy", field[2:-2], slope, 2e-3 * np.abs(field).max() + 1e-7)
    lowest = float(answer(wf.posterior, q.net, q.task, **q.call).free_energy)
    if lowest > energy.min() + 1e-6 * (1 + abs(lowest)):
        raise Defect(f"the posterior's free energy {lowest:.10g} lies above the landscape's {energy.min():.10g}")


def untied(q: Question) -> None:
    """Without tied weights the kernels are k wᵃ s^(a+1) with the lowest root s of Eq. (posterior.12)."""
    net, (L, unit, kappa) = q.net, scales(q)
    strength = q.y[0] ** 2 / unit
    gap = lambda s: s - 1 - strength * s**L / (s**L + kappa) ** 2  # noqa: E731
    grid = 1 + np.concatenate([[0], np.geomspace(1e-12, 2 + strength, 4000)])
    changes = np.flatnonzero(np.diff(np.sign(gap(grid))))
    roots = [brentq(gap, grid[i], grid[i + 1], xtol=1e-15) for i in changes]
    deep = wf.DNN(L, "linear", weight_variance=net.weight_variance, input_variance=net.input_variance, readout_variance=net.readout_variance)  # fmt: skip
    found = answer(wf.posterior, deep, q.task, **q.call)
    H = found.hidden.values[np.arange(L), np.arange(L), 0, 0]
    free = lambda s: 0.5 * strength / (s**L + kappa) + 0.5 * L * (s - 1 - np.log(s))  # noqa: E731
    best = min(roots, key=free)
    first = unit / net.readout_variance / np.prod(net.weight_variances)
    expected = np.cumprod([first, *net.weight_variances])
    close("hidden", H, expected * best ** np.arange(1, L + 1), 1e-6 * np.abs(H))
