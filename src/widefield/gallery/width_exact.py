"""Where the first order in 1/n stops: leading order, exact-in-n and ensembles as depth over width grows."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels, stderr
from widefield.theories.finite_width.tied.exact_linear import exact_linear

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

TRUSTED = 0.3  # of V/(nK²), beyond which `widefield.finite_width` warns
CASES = ("linear", "relu", "tied linear")


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


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """The three cases: relative variances, leading, exact and sampled."""
    import xarray as xr

    blocks = []
    for i, (case, measure) in enumerate(zip(CASES, (linear, relu, tied), strict=True)):
        report(i, len(CASES), f"{case}: {parameters.n_networks} networks")
        blocks.append(measure(parameters))
    report(len(CASES), len(CASES), "drawing")
    data = xr.merge(blocks)
    rows = judge_all(pair for case in CASES for pair in compared(data, case, parameters.compared)).rows
    notes = (missed(data), f"compared where V/(nK²) is at most {parameters.compared:g}: beyond, a few networks decide")
    return Made(draw(data, parameters), data, parameters, notes=notes, **judged(rows))


def linear(parameters: Parameters) -> "xr.Dataset":
    r"""Deep linear networks: Var Ĝ of one input and of the pair, over K².

    .. math::  \mathrm{Var}\,\hat G_{12} = \tfrac S3\prod(1+\tfrac2{n_\ell}) + (K_{12}^2-\tfrac S3)\prod(1-\tfrac1{n_\ell})
               - K_{12}^2, \qquad S = 2K_{12}^2 + K_{11}K_{22}
    """
    p = parameters
    x = np.array([[1.0, 0.0], [p.overlap, np.sqrt(1 - p.overlap**2)]]) * np.sqrt(2)
    network = wf.DNN(p.depth, "linear", weight_variance=1.0, readout_variance=None)
    below = np.arange(p.depth)  # hidden layers below layer ℓ
    K = np.array([1.0, p.overlap])
    S = 2 * K**2 + 1
    up, down = ((1 + k / p.linear_width) ** below[:, None] for k in (2, -1))
    exact = (S / 3 * up + (K**2 - S / 3) * down) / K**2 - 1
    return _deep("linear", network, wf.Task(x), p.linear_width, exact, p, seed=p.seed)


def relu(parameters: Parameters) -> "xr.Dataset":
    """Deep relu networks, one input: Var Ĝ = K²(Π(1 + 5/n) − 1)."""
    p = parameters
    network = wf.DNN(p.depth, "relu", weight_variance=2.0, readout_variance=None)
    exact = np.expm1(np.arange(p.depth)[:, None] * np.log1p(5 / p.relu_width))
    return _deep("relu", network, wf.Task(np.ones((1, 1))), p.relu_width, exact, p, seed=p.seed + 1)


def _deep(case: str, network, task, width: int, exact: np.ndarray, parameters: Parameters, seed: int) -> "xr.Dataset":
    """Relative variances of K_11 and, with a second input, of K_12, from the second layer on."""
    p, at = parameters, list(range(exact.shape[1]))
    theory = wf.finite_width(network, task, width=width, quantities=("kernel", "kernel_variance"))
    run = wf.simulate.finite_width(
        network, task, width=width, replicates=p.n_networks, seed=seed, groups=p.batches,
        quantities="kernel_variance", progress=False,
    )  # fmt: skip
    squared = theory.kernel.values[:, 0, at] ** 2
    sampled = run.kernel_variance.values[:, :, 0, at] / squared
    leading = theory.kernel_variance.values[:, 0, at] / squared
    return _dataset(case, np.arange(2, p.depth + 1), exact[1:], leading[1:], sampled[:, 1:])


def tied(parameters: Parameters) -> "xr.Dataset":
    """Tied linear networks with tied biases, one input: Var of Σhh/n over C², by loop equations."""
    p = parameters
    network = wf.RNN(
        p.tied_depth, "linear", weight_variance=p.tied_variance, bias_variance=p.tied_bias, biases="tied",
        readout_variance=None,
    )  # fmt: skip
    task = wf.Task(np.ones((1, 1)))
    theory = wf.finite_width(network, task, width=p.tied_width, quantities=("pair_kernel", "pair_variance"))
    found = exact_linear(network, task, p.tied_width)
    own = np.flatnonzero(found.pairs[:, 0] == found.pairs[:, 1])
    run = wf.simulate.prior(
        network, task, width=p.tied_width, replicates=p.n_networks, seed=p.seed + 2, quantities="hidden", progress=False
    )
    hh = np.diagonal(run.hidden.values[..., 0, 0], axis1=1, axis2=2)
    batches = hh[: len(hh) // p.batches * p.batches].reshape(p.batches, -1, p.tied_depth)
    C = np.diagonal(theory.pair_kernel.values[..., 0, 0])
    leading = np.diagonal(theory.pair_variance.values[..., 0, 0]) / (p.tied_width * C**2)
    exact = np.diag(found.covariance)[own] / C**2
    sampled = batches.var(axis=1, ddof=1) / C**2
    return _dataset("tied linear", np.arange(p.tied_depth), exact[:, None], leading[:, None], sampled[..., None])


def _dataset(case: str, steps: np.ndarray, exact, leading, sampled) -> "xr.Dataset":
    """One case with its own dims: layers (or states) and which kernel entry."""
    import xarray as xr

    name = case.replace(" ", "_")
    dims = (f"{name}_step", f"{name}_entry")
    coords = {dims[0]: steps, dims[1]: ["K11", "K12"][: exact.shape[1]]}
    fields = {"exact": (dims, exact), "leading": (dims, leading), "sampled": (("replicate", *dims), sampled)}
    return xr.Dataset({f"{name}_{k}": v for k, v in fields.items()}, coords)


def part(data: "xr.Dataset", case: str) -> "xr.Dataset":
    """One case with plain names: ``exact``, ``leading`` and ``sampled`` over (step, entry)."""
    name = case.replace(" ", "_")
    fields = {f"{name}_{k}": k for k in ("exact", "leading", "sampled")}
    return data[list(fields)].rename(fields | {f"{name}_step": "step", f"{name}_entry": "entry"})


def compared(data: "xr.Dataset", case: str, limit: float) -> list[Pair]:
    """Sampled against exact-in-n, where the leading order is at most ``limit``."""
    entries = [part(data, case).sel(entry=entry) for entry in part(data, case).entry.values]
    near = [found.sel(step=found.leading <= limit) for found in entries]
    return [Pair(f"Var/K², {case}, {found.entry.item()}", found.exact, found.sampled) for found in near]


def missed(data: "xr.Dataset") -> str:
    """How much too small the leading order is where it reaches the limit of trust."""
    words = []
    for case in CASES:
        found = part(data, case).isel(entry=0)
        last = found.isel(step=int(np.argmin(np.abs(found.leading.values - TRUSTED))))
        short = 100 * (1 - float(last.leading / last.exact))
        words.append(f"{case} {short:.0f} % at {float(last.leading):.2g}")
    return f"near V/(nK²) = {TRUSTED} the leading order is too small: {', '.join(words)}"


def draw(data: "xr.Dataset", parameters: Parameters) -> Figure:
    """Relative variance against depth, one panel per case."""
    p = parameters
    titles = (
        f"deep, linear, $n = {p.linear_width}$",
        f"deep, relu, $n = {p.relu_width}$",
        f"tied, linear, tied biases, $n = {p.tied_width}$",
    )
    with house_style():
        figure, axes = panels(1, 3, size=(3.3, 2.9))
        for ax, case, title, name in zip(axes[0], CASES, titles, "abc", strict=True):
            _curves(ax, part(data, case))
            letter(ax, name)
            ax.set(title=title, yscale="log", xlabel="time $a$" if case == "tied linear" else "layer")
        axes[0, 0].set_ylabel(r"variance over networks / $K^2$")
        axes[0, 2].set_ylabel(r"Var$(\frac{1}{n}\sum hh)\,/\,C^2$")
        axes[0, 0].legend(fontsize=7, loc="upper left")
        axes[0, 0].text(p.depth, 0.9 * TRUSTED, "first order trusted below", fontsize=7, ha="right", va="top")
        figure.supxlabel(
            "symbols: networks, bars: standard error (they miss the rare networks that decide)", fontsize=8
        )
    return figure


def _curves(ax: "Axes", found: "xr.Dataset") -> None:
    symbols = {"K11": "$K_{11}$", "K12": "$K_{12}$"}
    for i, entry in enumerate(found.entry.values):
        case, what = found.sel(entry=entry), f", {symbols[str(entry)]}" if found.entry.size > 1 else ""
        samples = case.sampled.transpose("replicate", "step").values
        ax.plot(case.step, case.leading, color=SERIES[i], linestyle="--", linewidth=1, label=f"leading order{what}")
        ax.plot(case.step, case.exact, color=SERIES[i], label=f"exact in $n${what}")
        ax.errorbar(case.step, samples.mean(axis=0), stderr(samples), fmt="o", markersize=3, color=SERIES[i])
    ax.axhline(TRUSTED, color=COLORS["theory"], linewidth=0.8, linestyle=":")
