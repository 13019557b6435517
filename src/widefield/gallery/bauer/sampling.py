"""What the figures of the poster share: the one-sample task, chains of trained networks, and what to say of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit

Trial = tuple[str, wf.Solution]  # a simulation and its name
Blocks = tuple[xr.Dataset, list[Trial]]  # fields of a case, and the simulations they come from
KINDS = ("RNN", "DNN")
R_HAT_LIMIT = 1.05
FIRST = {"sample": 0, "sample_": 0}
SPECTRA = ("eigenvalue_real", "eigenvalue_imag")
OUTLIER: dict[str, Any] = {  # an eigenvalue that theory predicts
    "marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.4, "linestyle": "none",
    "color": kit.SERIES[5],
}  # fmt: skip
STATES = ("state $b$", "state $a$")  # names of the axes of a kernel


@dataclass(frozen=True)
class Sampling:
    """κ = ``temperature``, κ/N the labels' noise; ``n_chains`` of each kind, ``steps`` networks of each are averaged.

    Networks have ``width`` neurons and, to remove the offset of order 1/N, half of it: 2 · wide − narrow.
    """

    temperature: float = 1.0
    width: int = 1000
    n_chains: int = 16
    steps: int = 400
    warmup: int = 200
    seed: int = 2026

    @property
    def sizes(self) -> dict[str, int]:
        """Both widths by the ends of their fields' names."""
        return {"wide": self.width, "narrow": self.width // 2}


def linear(kind: str, depth: int, weight_variance: float = 1.0) -> wf.Network:
    """A linear ``RNN`` or ``DNN``, with unit variances but for that of the recurrent weights."""
    return getattr(wf, kind)(depth, "linear", weight_variance=weight_variance)


def endpoint(strength: float) -> wf.Task:
    """One unit input at the first state, one label at the last; with unit variances λ = ``strength``, κ̂ = κ."""
    return wf.Task(np.ones((1, 1)), np.array([np.sqrt(strength)]))


def critical_strength(depth: int, temperature: Any) -> Any:
    r"""Where one sample's incoherent state turns unstable, :math:`\lambda_c = (s_c-1)(s_c^{L}+\hat\kappa)^2/s_c^{L}`.

    Notation: :math:`L` = ``depth`` = T − 1, :math:`s_c = (L-1)/(L-2)`.
    """
    s = (depth - 1) / (depth - 2)
    return (s - 1) * (s**depth + np.asarray(temperature)) ** 2 / s**depth


def theory(network: wf.Network, task: wf.Task, temperature: float, branch: str = "lowest") -> wf.Solution:
    """The saddle point of one architecture."""
    return wf.posterior(network, task, temperature=temperature, branch=branch, progress=False)


def trained(
    p: Sampling, network: wf.Network, task: wf.Task, *, width: int, seed: int, quantities: tuple[str, ...], start: Any = "prior"
) -> wf.Solution:  # fmt: skip
    """Chains in the posterior of one task; those that do not mix are kept, and `mixing` speaks of them."""
    return wf.simulate.posterior(
        network, task, temperature=p.temperature, width=width, replicates=p.n_chains, draws=p.steps, warmup=p.warmup,
        seed=seed, start=start, quantities=quantities, progress=False, throw=False,
    )  # fmt: skip


def both_sizes(
    p: Sampling,
    network: wf.Network,
    task: wf.Task,
    name: str,
    *,
    seed: int,
    quantities: tuple[str, ...],
    observe: Callable[[wf.Solution], Mapping[str, xr.DataArray]],
) -> tuple[dict[str, xr.DataArray], list[Trial]]:
    """What ``observe`` sees of chains from random weights, as ``<field>_wide`` and ``<field>_narrow``."""
    fields, trials = dict[str, xr.DataArray](), []
    for i, (size, width) in enumerate(p.sizes.items()):
        trial = trained(p, network, task, width=width, seed=seed + i, quantities=quantities)
        trials.append((f"{name}, N = {width}", trial))
        fields |= {f"{field}_{size}": values for field, values in observe(trial).items()}
    return fields, trials


def collect(cases: Iterable[Blocks]) -> tuple[list[xr.Dataset], list[Trial]]:
    """All fields and all simulations."""
    blocks, trials = zip(*cases)
    return list(blocks), [trial for some in trials for trial in some]


def leading_eigenvalue(solution: wf.Solution, *, outside: bool) -> complex:
    """The largest eigenvalue that theory predicts for W; ``outside`` the bulk alone, zero where there is none."""
    spectrum = wf.weight_outliers(solution).data
    values = (spectrum.eigenvalue_real + 1j * spectrum.eigenvalue_imag).values  # the largest first
    values = values[spectrum.outlier.values] if outside else values
    return complex(values[0]) if len(values) else 0j


def eigenvalues(trial: wf.Solution | xr.Dataset, prefix: str = "") -> xr.DataArray:
    """Sampled eigenvalues of W as complex numbers."""
    data = trial if isinstance(trial, xr.Dataset) else trial.data
    return data[f"{prefix}eigenvalue_real"] + 1j * data[f"{prefix}eigenvalue_imag"]


def mixing(trials: Iterable[Trial]) -> tuple[str, ...]:
    """A note with the largest R-hat, and one for each simulation whose chains had not mixed or cannot be judged."""
    measured = [(name, r_hat(trial)) for name, trial in trials]
    largest = max((r for _, r in measured if r is not None), default=np.nan)
    notes = [f"largest split R-hat of the chains: {largest:.3f}"]
    for name, r in measured:
        if r is None:
            notes.append(f"{name}: chains too short or too few to be compared, so no verdict")
        elif r > R_HAT_LIMIT:
            notes.append(f"{name}: chains had not mixed, split R-hat {r:.3g} > {R_HAT_LIMIT}, so no verdict")
    return tuple(notes)


def verdicts(pairs: Iterable[kit.Pair], trials: Iterable[Trial]) -> Iterable[kit.Row]:
    """Rows of the comparison; nothing is said to agree where chains had not mixed, or were too short to tell."""
    rows = kit.judge_all(pairs).rows
    if all(r is not None and r <= R_HAT_LIMIT for r in (r_hat(trial) for _, trial in trials)):
        return rows
    return [replace(row, agrees=None if row.agrees else row.agrees) for row in rows]


def r_hat(trial: wf.Solution) -> float | None:
    """The largest split R-hat of a simulation, None where its chains are too short or too few."""
    values = trial.certificate.diagnostics.get("r_hat")
    return None if values is None else max(values.values())


def limit(data: xr.Dataset, name: str) -> xr.DataArray:
    """Infinite width up to 1/N², from the fields ``<name>_wide`` and ``<name>_narrow`` of widths N and N/2."""
    return 2 * data[f"{name}_wide"] - data[f"{name}_narrow"]


def state_traces(kernel: xr.DataArray) -> xr.DataArray:
    """tr H_ab / P over (…, state, state_)."""
    return kit.diagonal(kernel, "sample").drop_vars("sample", errors="ignore").mean("sample")


def entries(kernel: xr.DataArray, *, odd: bool = True) -> xr.DataArray:
    """Entries of a (state, state_) kernel with state ≤ state_ as one dim ``pair``; even lags only without ``odd``.

    Where W → −W is unbroken, networks are reported with the sign that makes adjacent states correlate positively: the
    mean of an odd lag is then of order 1/√N, and not to be compared with the theory's zero.
    """
    n = kernel.sizes["state"]
    kept = [(a, b) for a in range(n) for b in range(a, n) if odd or (b - a) % 2 == 0]
    rows, columns = (xr.DataArray([pair[i] for pair in kept], dims="pair") for i in (0, 1))
    flat = kernel.isel(state=rows, state_=columns).drop_vars(("state", "state_"), errors="ignore")
    return flat.assign_coords(pair=[f"{a}-{b}" for a, b in kept])


def spectrum_panel(ax: kit.Axes, z: np.ndarray, radius: float, title: str) -> None:
    """Eigenvalues in the complex plane, and the circle that random weights fill."""
    ax.plot(z.real, z.imag, linestyle="none", marker=".", markersize=2.5, color=kit.COLORS["RNN"], alpha=0.6)
    circle = radius * np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    ax.plot(circle.real, circle.imag, color="black", linewidth=0.8, zorder=3)
    ax.set(aspect="equal", xlabel=r"$\mathrm{Re}\,z$", ylabel=r"$\mathrm{Im}\,z$", title=title)
