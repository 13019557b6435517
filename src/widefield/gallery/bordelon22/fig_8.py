"""Fig. 8 of Bordelon & Pehlevan (2022): two layers on white data follow one ordinary differential equation.

Eqs. 78–79: with Kˣ = 1 and f along y, dΔ/dt = −2√(1 + γ0²(y−Δ)²) Δ and yᵀH(t)y/|y|² = √(1 + γ0²f²).
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import xarray as xr
from scipy.integrate import solve_ivp

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bordelon22.kernels import LIGHT, SMALL, Ensemble, Kernels, Question, along_labels, reduced

NOTE = "the curves of gradient flow have no steps; networks are compared with the theory of their own steps"
FIELDS = {"error": "Δ", "kernel": "yᵀHy"}


@dataclass(frozen=True)
class Parameters(Ensemble):
    """``rate`` is that of time in units of 1/√(1 + γ0²|y|²), the largest rate of the problem; |y| = 1."""

    richnesses: tuple[float, ...] = (0.5, 1.0, 5.0, 10.0, 50.0)
    rate: float = 0.05
    steps: int = 120


FULL = Parameters()
QUICK = Parameters(width=400, replicates=64)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """The closed form, gradient flow, and finite steps in theory and in networks."""
    data = kit.over({"richness": p.richnesses}, partial(one_richness, p), work.jobs(len(p.richnesses)))
    panels = [partial(_along_labels, field=field) for field in FIELDS]
    return kit.made([panels], data, p, pairs(data), size=(3.8, 3.0), notes=(Kernels(p).note, NOTE))


def one_richness(p: Parameters, i: int, gamma: float) -> xr.Dataset:
    """Error Δ along y and kernel along y, of the closed form (Eq. 78), of flow, of finite steps and of networks."""
    task, rate = wf.Task(np.sqrt(2) * np.eye(2), np.array([0.6, -0.8])), p.rate / np.sqrt(1 + gamma**2)
    question, experiment = Question.of(wf.DNN(1, "linear"), task, rate, p.steps, gamma), Kernels(p, LIGHT)
    every, continuous = list(range(p.steps + 1)), replace(question.training, flow=True)
    flow = wf.dynamics(question.network, task, continuous, quantities=LIGHT, progress=False)
    fields = observed(reduced(flow, every).rename(at="moment"), task, "_flow")
    fields |= observed(experiment.theory(question), task, "_theory")
    fields |= observed(experiment.sampled(question, p.seed + 2 * i), task, "_sampled")
    slope, times = lambda t, error: -2 * np.sqrt(1 + gamma**2 * (1 - error) ** 2) * error, rate * np.arange(p.steps + 1)
    error = solve_ivp(slope, (0, times[-1]), [1.0], t_eval=times, rtol=1e-10, atol=1e-12).y[0]
    data = xr.Dataset(fields).rename(moment="step")
    data["error_exact"], data["kernel_exact"] = ("step", error), ("step", np.sqrt(1 + gamma**2 * (1 - error) ** 2))
    return data.assign_coords(step=every)


def observed(data: xr.Dataset, task: wf.Task, suffix: str) -> dict[str, xr.DataArray]:
    """Δ along the labels, whose length is 1, and half of the tangent kernel along them, which is H."""
    y = xr.DataArray(task.labels()[:, 0, 0], dims="sample")
    error = 1 - (data.prediction.isel(output=0, drop=True) * y).sum("sample")
    return {f"error{suffix}": error, f"kernel{suffix}": along_labels(data.ntk, task) * task.n_samples**2 / 2}


def pairs(data: xr.Dataset) -> kit.Pairs:
    """Flow against the closed form, networks against the theory of finite steps."""
    for gamma, case in kit.cases(data, "richness"):
        early = case.sel(at=case.error_theory >= SMALL)
        for field, word in FIELDS.items():
            yield kit.Pair(f"{word} closed form, flow, γ0 = {gamma:g}", case[f"{field}_exact"], case[f"{field}_flow"])
            yield kit.Pair(f"{word} networks, γ0 = {gamma:g}", early[f"{field}_theory"], early[f"{field}_sampled"])


def _along_labels(ax: kit.Axes, data: xr.Dataset, p: Parameters, field: str) -> None:
    for color, (gamma, case) in zip(kit.SERIES, kit.cases(data, "richness")):
        label = rf"$\gamma_0={gamma:g}$"
        kit.curve(ax, case[f"{field}_flow"], case[f"{field}_sampled"], color=color, label=label, unit=p.rate)
        ax.plot(p.rate * data.step, case[f"{field}_exact"], color="black", linestyle=":", linewidth=1)
    kit.key(ax, "Eq. 78", ":", "black")
    ax.errorbar([], [], [], fmt="o", markersize=3.5, color=kit.COLORS["theory"], label="networks")
    ax.set(xlabel=r"time $t\,\sqrt{1+\gamma_0^2|y|^2}$", title=f"{field} along the labels")
    if field == "error":
        ax.set(ylabel=r"error $\Delta(t)$")
        ax.legend()
    else:
        ax.set(ylabel=r"$y^TH(t)\,y/|y|^2$", yscale="log")
