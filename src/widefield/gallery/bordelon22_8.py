"""Fig. 8 of Bordelon & Pehlevan (2022): two layers on white data follow one ordinary differential equation.

Eqs. 78–79: with Kˣ = 1 and f along y, dΔ/dt = −2√(1 + γ0²(y−Δ)²) Δ and yᵀH(t)y/|y|² = √(1 + γ0²f²).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import widefield as wf
from widefield.compare import Pair, judge_all
from widefield.gallery import bordelon22
from widefield.gallery.bordelon22 import LIGHT, Networks, Run, points
from widefield.gallery.record import Made, Report, judged
from widefield.plot.style import COLORS, SERIES, Figure, house_style, letter, panels
from widefield.question.task import Task

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Parameters(Networks):
    """``rate`` is that of time in units of 1/√(1 + γ0²|y|²), the largest rate of the problem; |y| = 1."""

    richnesses: tuple[float, ...] = (0.5, 1.0, 5.0, 10.0, 50.0)
    rate: float = 0.05
    steps: int = 120


FULL = Parameters()
QUICK = Parameters(width=400, replicates=64)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """The closed form, gradient flow, and finite steps in theory and in networks."""
    import xarray as xr

    p = parameters
    jobs = bordelon22.counter(report, len(p.richnesses))
    blocks = []
    for i, gamma in enumerate(p.richnesses):
        jobs(f"γ0 = {gamma:g}")
        blocks.append(one_richness(p, gamma, seed=p.seed + 2 * i).expand_dims(richness=[gamma]))
    data = xr.concat(blocks, "richness")
    notes = (
        p.note,
        "the curves of gradient flow have no steps; networks are compared with the theory of their own steps",
    )
    return Made(draw(data, p), data, p, notes=notes, **judged(judge_all(pairs(data)).rows))


def one_richness(p: Parameters, gamma: float, seed: int) -> "xr.Dataset":
    """Error Δ along y and kernel along y, of the closed form, of flow, of finite steps and of networks."""
    import xarray as xr

    task = Task(np.sqrt(2) * np.eye(2), np.array([0.6, -0.8]))
    run = Run(wf.DNN(1, "linear"), task, gamma, p.rate / np.sqrt(1 + gamma**2), p.steps, quantities=LIGHT)
    flow = wf.dynamics(run.network, task, **run.physics, flow=True, quantities=LIGHT, progress=False)
    every = list(range(p.steps + 1))
    found = observed(bordelon22.reduced(flow, every), task, "_flow")
    found |= observed(run.theory(), task, "_theory")
    found |= observed(run.trained(p, seed), task, "_sampled")
    data = xr.Dataset({name: field.rename(at="step") if "_flow" in name else field for name, field in found.items()})
    error = closed_form(gamma, run.rate * np.arange(p.steps + 1))
    data["error_exact"] = ("step", error)
    data["kernel_exact"] = ("step", np.sqrt(1 + gamma**2 * (1 - error) ** 2))
    return data.assign_coords(step=every)


def observed(data: "xr.Dataset", task: Task, suffix: str) -> dict[str, "xr.DataArray"]:
    """Δ along the labels, whose length is 1, and half of the tangent kernel along them, which is H."""
    import xarray as xr

    y = xr.DataArray(task.labels()[:, 0, 0], dims="sample")
    error = 1 - (data.prediction.isel(output=0) * y).sum("sample")
    kernel = bordelon22.along_labels(data.ntk, task) * task.n_samples**2 / 2
    return {f"error{suffix}": error.drop_vars("output", errors="ignore"), f"kernel{suffix}": kernel}


def closed_form(gamma: float, times: np.ndarray) -> np.ndarray:
    """Δ(t) of Eq. 78 with |y| = 1."""
    from scipy.integrate import solve_ivp

    slope = lambda t, error: -2 * np.sqrt(1 + gamma**2 * (1 - error) ** 2) * error  # noqa: E731
    return solve_ivp(slope, (0, times[-1]), [1.0], t_eval=times, rtol=1e-10, atol=1e-12).y[0]


def pairs(data: "xr.Dataset") -> Iterator[Pair]:
    """Flow against the closed form, networks against the theory of finite steps."""
    for gamma in data.richness.values:
        own = data.sel(richness=gamma)
        for field, word in (("error", "Δ"), ("kernel", "yᵀHy")):
            yield Pair(f"{word} closed form, flow, γ0 = {gamma:g}", own[f"{field}_exact"], own[f"{field}_flow"])
            seen = own["at"].values[own.error_theory.values >= bordelon22.SMALL]
            theory, sampled = (own[f"{field}_{part}"].sel(at=seen) for part in ("theory", "sampled"))
            yield Pair(f"{word} networks, γ0 = {gamma:g}", theory, sampled)


def draw(data: "xr.Dataset", p: Parameters) -> Figure:
    """Error and kernel along the labels."""
    with house_style():
        figure, axes = panels(1, 2, size=(3.8, 3.0))
        for ax, field in zip(axes[0], ("error", "kernel"), strict=True):
            for color, gamma in zip(SERIES, data.richness.values, strict=False):
                own = data.sel(richness=gamma)
                ax.plot(p.rate * data.step, own[f"{field}_flow"], color=color, label=rf"$\gamma_0={gamma:g}$")
                ax.plot(p.rate * data.step, own[f"{field}_exact"], color="black", linestyle=":", linewidth=1)
                points(ax, p.rate * data["at"], own[f"{field}_sampled"], color=color)
            ax.plot([], [], color="black", linestyle=":", linewidth=1, label="Eq. 78")
            ax.errorbar([], [], [], fmt="o", markersize=3.5, color=COLORS["theory"], label="networks")
            ax.set(xlabel=r"time $t\,\sqrt{1+\gamma_0^2|y|^2}$")
        axes[0, 0].set(ylabel=r"error $\Delta(t)$", title="error along the labels")
        axes[0, 1].set(ylabel=r"$y^TH(t)\,y/|y|^2$", title="kernel along the labels", yscale="log")
        axes[0, 0].legend(fontsize=7)
        for ax, name in zip(axes[0], "ab", strict=True):
            letter(ax, name)
    return figure
