"""Where the first order in 1/n stops: leading order, exact-in-n and ensembles as depth over width grows."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.roberts.flow import two_inputs
from widefield.theories.finite_width.tied.exact_linear import exact_linear

TRUSTED = 0.3  # of V/(nK²), beyond which `widefield.finite_width` warns
SYMBOLS = {"K11": "$K_{11}$", "K12": "$K_{12}$"}
TITLES = {"linear": "deep, linear", "relu": "deep, relu", "tied linear": "tied, linear, tied biases"}
CAPTION = "symbols: networks, bars: standard error (they miss the rare networks that decide)"


@dataclass(frozen=True)
class Parameters:
    """Critical networks without biases; the tied ones (few states) have w = ``tied_variance`` and tied biases.

    Two inputs of unit power and overlap ``overlap`` for the linear deep networks, one for the others. The sampled
    variance of a product of many layers is heavy-tailed: it is compared where V/(nK²) is at most ``compared``.
    """

    linear_width: int = 25
    relu_width: int = 60
    depth: int = 40
    tied_width: int = 25
    tied_depth: int = 6
    tied_variance: float = 1.0
    tied_bias: float = 0.2
    n_networks: int = 1_000_000
    batches: int = 40
    overlap: float = 0.5
    compared: float = 1.0
    seed: int = 5


FULL = Parameters()
QUICK = Parameters(n_networks=200_000)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """The three cases: relative variances, leading, exact and sampled."""
    job, blocks = work.jobs(len(CASES)), []
    for case, measure in CASES.items():
        job(f"{case}: {p.n_networks} networks")
        blocks.append(named(case, *measure(p)))
    data = xr.merge(blocks)
    notes = (missed(data), f"compared where V/(nK²) is at most {p.compared:g}: beyond, a few networks decide")
    panels = [partial(_variances, case=case) for case in CASES]
    return kit.made([panels], data, p, pairs(data, p.compared), size=(3.3, 2.9), notes=notes, caption=CAPTION)


Variances = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # layers; over K²: exact, leading, sampled


def linear(p: Parameters) -> Variances:
    r"""Deep linear networks: Var Ĝ of one input and of the pair, over K².

    .. math::  \mathrm{Var}\,\hat G_{12} = \tfrac S3\prod(1+\tfrac2{n_\ell}) + (K_{12}^2-\tfrac S3)\prod(1-\tfrac1{n_\ell})
               - K_{12}^2, \qquad S = 2K_{12}^2 + K_{11}K_{22}
    """
    K = np.array([1.0, p.overlap])
    S = 2 * K**2 + 1
    up, down = ((1 + k / p.linear_width) ** np.arange(p.depth)[:, None] for k in (2, -1))
    exact = (S / 3 * up + (K**2 - S / 3) * down) / K**2 - 1
    return _deep(p, "linear", 1.0, two_inputs(p.overlap), p.linear_width, exact, seed=p.seed)


def relu(p: Parameters) -> Variances:
    """Deep relu networks, one input: Var Ĝ = K²(Π(1 + 5/n) − 1)."""
    exact = np.expm1(np.arange(p.depth)[:, None] * np.log1p(5 / p.relu_width))
    return _deep(p, "relu", 2.0, wf.Task(np.ones((1, 1))), p.relu_width, exact, seed=p.seed + 1)


def _deep(
    p: Parameters, activation: str, variance: float, task: wf.Task, width: int, exact: np.ndarray, *, seed: int
) -> Variances:
    """Of K_11 and, with a second input, of K_12, from the second layer on."""
    network, entries = wf.DNN(p.depth, activation, weight_variance=variance, readout_variance=None), task.n_samples
    wanted = ("kernel", "kernel_variance")
    theory = wf.finite_width(network, task, width=width, quantities=wanted, throw=False)  # beyond its trust, on purpose
    trial = wf.simulate.finite_width(
        network, task, width=width, replicates=p.n_networks, seed=seed, groups=p.batches,
        quantities="kernel_variance", progress=False,
    )  # fmt: skip
    squared = theory.kernel.values[1:, 0, :entries] ** 2
    sampled = trial.kernel_variance.values[:, 1:, 0, :entries] / squared
    return np.arange(2, p.depth + 1), exact[1:], theory.kernel_variance.values[1:, 0, :entries] / squared, sampled


def tied(p: Parameters) -> Variances:
    """Tied linear networks with tied biases, one input: Var of Σhh/n over C², by loop equations."""
    network = wf.RNN(
        p.tied_depth, "linear", weight_variance=p.tied_variance, bias_variance=p.tied_bias, biases="tied",
        readout_variance=None,
    )  # fmt: skip
    task, n = wf.Task(np.ones((1, 1))), p.tied_width
    theory = wf.finite_width(network, task, width=n, quantities=("pair_kernel", "pair_variance"), throw=False)
    loops = exact_linear(network, task, n)
    equal = np.flatnonzero(loops.pairs[:, 0] == loops.pairs[:, 1])
    trial = wf.simulate.prior(
        network, task, width=n, replicates=p.n_networks, seed=p.seed + 2, quantities="hidden", progress=False
    )
    hh = np.diagonal(trial.hidden.values[..., 0, 0], axis1=1, axis2=2)
    batches = hh[: len(hh) // p.batches * p.batches].reshape(p.batches, -1, p.tied_depth)
    C, V = (np.diagonal(theory.data[name].values[..., 0, 0]) for name in ("pair_kernel", "pair_variance"))
    by_square = np.diag(loops.covariance)[equal] / C**2, V / (n * C**2), batches.var(axis=1, ddof=1) / C**2
    exact, leading, sampled = (values[..., None] for values in by_square)
    return np.arange(p.tied_depth), exact, leading, sampled


CASES = {"linear": linear, "relu": relu, "tied linear": tied}
PARTS = ("exact", "leading", "sampled")


def named(case: str, steps: np.ndarray, *variances: np.ndarray) -> xr.Dataset:
    """One case with fields and dims that are called after it: layers (or states) and which kernel entry."""
    name = case.replace(" ", "_")
    dims, entries = (f"{name}_step", f"{name}_entry"), ["K11", "K12"][: variances[0].shape[1]]
    fields = {f"{name}_{part}": (("replicate", *dims)[-v.ndim :], v) for part, v in zip(PARTS, variances)}
    return xr.Dataset(fields, {dims[0]: steps, dims[1]: entries})


def part(data: xr.Dataset, case: str) -> xr.Dataset:
    """One case with plain names: ``exact``, ``leading`` and ``sampled`` over (step, entry)."""
    name = case.replace(" ", "_")
    fields = {f"{name}_{part}": part for part in PARTS}
    return data[list(fields)].rename(fields | {f"{name}_step": "step", f"{name}_entry": "entry"})


def pairs(data: xr.Dataset, limit: float) -> kit.Pairs:
    """Sampled against exact-in-n, where the leading order is at most ``limit``."""
    for case in CASES:
        for entry, line in kit.cases(part(data, case), "entry"):
            near = line.sel(step=line.leading <= limit)
            yield kit.Pair(f"Var/K², {case}, {entry}", near.exact, near.sampled)


def missed(data: xr.Dataset) -> str:
    """How much too small the leading order is where it reaches the limit of trust."""
    words = []
    for case in CASES:
        line = part(data, case).isel(entry=0)
        last = line.isel(step=int(np.argmin(np.abs(line.leading.values - TRUSTED))))
        short = 100 * (1 - float(last.leading / last.exact))
        words.append(f"{case} {short:.0f} % at {float(last.leading):.2g}")
    return f"near V/(nK²) = {TRUSTED} the leading order is too small: {', '.join(words)}"


def _variances(ax: kit.Axes, data: xr.Dataset, p: Parameters, case: str) -> None:
    """Relative variance against depth."""
    lines = part(data, case)
    for color, (entry, line) in zip(kit.SERIES, kit.cases(lines, "entry")):
        what = f", {SYMBOLS[str(entry)]}" if lines.entry.size > 1 else ""
        ax.plot(line.step, line.leading, color=color, linestyle="--", linewidth=1, label=f"leading order{what}")
        kit.curve(ax, line.exact, line.sampled, color=color, label=f"exact in $n${what}")
    ax.axhline(TRUSTED, color=kit.COLORS["theory"], linewidth=0.8, linestyle=":")
    width = {"linear": p.linear_width, "relu": p.relu_width, "tied linear": p.tied_width}[case]
    ax.set(title=f"{TITLES[case]}, $n = {width}$", yscale="log", xlabel="layer")
    if case == "linear":
        ax.set_ylabel(r"variance over networks / $K^2$")
        ax.legend(loc="upper left")
        ax.text(p.depth, 0.9 * TRUSTED, "first order trusted below", fontsize=7, ha="right", va="top")
    if case == "tied linear":
        ax.set(xlabel="time $a$", ylabel=r"Var$(\frac{1}{n}\sum hh)\,/\,C^2$")
