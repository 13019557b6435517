"""What the entries of the poster share: the one-sample task, chains of trained networks, and what to say of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.answer.solution import Solution
from widefield.compare import Pair, Row, judge_all
from widefield.gallery.record import judged
from widefield.plot.style import KERNEL_MAP, N_ANNOTATED, SERIES
from widefield.question.network import Network

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

Trial = tuple[str, Solution]  # a simulation and its name
KINDS = ("RNN", "DNN")
R_HAT_LIMIT = 1.05
FIRST = {"sample": 0, "sample_": 0}
RING: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.4}
OUTLIER: dict[str, Any] = {**RING, "linestyle": "none", "color": SERIES[5]}  # an eigenvalue that theory predicts


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
    def widths(self) -> tuple[int, int]:
        return self.width, self.width // 2


def linear(kind: str, depth: int, weight_variance: float = 1.0) -> Network:
    """A linear ``RNN`` or ``DNN``, with unit variances but for that of the recurrent weights."""
    return getattr(wf, kind)(depth, "linear", weight_variance=weight_variance)


def endpoint(strength: float) -> wf.Task:
    """One unit input at the first state, one label at the last; with unit variances λ = ``strength``, κ̂ = κ."""
    return wf.Task(np.ones((1, 1)), np.array([np.sqrt(strength)]))


def critical_strength(depth: int, temperature: Any) -> Any:
    r"""Where one sample's incoherent state turns unstable, :math:`\lambda_c = (s_c-1)(s_c^{L}+\hat\kappa)^2/s_c^{L}`.

    Section 7 of theory/posterior. Notation: :math:`L` = ``depth`` = T − 1, :math:`s_c = (L-1)/(L-2)`.
    """
    s = (depth - 1) / (depth - 2)
    return (s - 1) * (s**depth + np.asarray(temperature)) ** 2 / s**depth


def theory(kind: str, depth: int, task: wf.Task, temperature: float, **options: Any) -> Solution:
    """The saddle point of one architecture."""
    return wf.posterior(linear(kind, depth), task, temperature=temperature, progress=False, **options)


def trained(
    p: Sampling, network: Network, task: wf.Task, *, width: int, seed: int, quantities: tuple[str, ...], start: Any
) -> Solution:
    """Chains in the posterior of one task; those that do not mix are kept, and `mixing` speaks of them."""
    return wf.simulate.posterior(
        network,
        task,
        temperature=p.temperature,
        width=width,
        replicates=p.n_chains,
        draws=p.steps,
        warmup=p.warmup,
        seed=seed,
        start=start,
        quantities=quantities,
        progress=False,
        throw=False,
    )


def mixing(trials: Iterable[Trial]) -> tuple[str, ...]:
    """A note with the largest R-hat, and one for each simulation whose chains had not mixed or cannot be judged."""
    found = [(name, r_hat(trial)) for name, trial in trials]
    notes = [f"largest split R-hat of the chains: {max((r for _, r in found if r is not None), default=np.nan):.3f}"]
    for name, r in found:
        if r is None:
            notes.append(f"{name}: chains too short or too few to be compared, so no verdict")
        elif r > R_HAT_LIMIT:
            notes.append(f"{name}: chains had not mixed, split R-hat {r:.3g} > {R_HAT_LIMIT}, so no verdict")
    return tuple(notes)


def verdict(pairs: Iterable[Pair], trials: Iterable[Trial]) -> dict[str, Any]:
    """`judged` rows; nothing is said to agree where chains had not mixed, or were too short to tell."""
    rows: Iterable[Row] = judge_all(pairs).rows
    worst = [r_hat(trial) for _, trial in trials]
    if any(r is None or r > R_HAT_LIMIT for r in worst):
        rows = [replace(row, agrees=None if row.agrees else row.agrees) for row in rows]
    return judged(rows)


def r_hat(trial: Solution) -> float | None:
    """The largest split R-hat of a simulation, None where its chains are too short or too few."""
    found = trial.certificate.diagnostics.get("r_hat")
    return None if found is None else max(found.values())


def limit(wide: "xr.DataArray", narrow: "xr.DataArray") -> "xr.DataArray":
    """Infinite width up to 1/N², from widths N and N/2."""
    return 2 * wide - narrow


def state_traces(kernel: "xr.DataArray") -> "xr.DataArray":
    """tr H_ab / P over (…, state, state_)."""
    import xarray as xr

    same = xr.DataArray(np.arange(kernel.sizes["sample"]), dims="sample")
    return kernel.isel(sample_=same).drop_vars(("sample", "sample_"), errors="ignore").mean("sample")


def entries(kernel: "xr.DataArray", *, odd: bool = True) -> "xr.DataArray":
    """Entries of a (state, state_) kernel with state ≤ state_ as one dim ``pair``; even lags only without ``odd``.

    Where W → −W is unbroken, networks are reported with the sign that makes adjacent states correlate positively: the
    mean of an odd lag is then of order 1/√N, and not to be compared with the theory's zero.
    """
    import xarray as xr

    n = kernel.sizes["state"]
    kept = [(a, b) for a in range(n) for b in range(a, n) if odd or (b - a) % 2 == 0]
    rows, columns = (xr.DataArray([pair[i] for pair in kept], dims="pair") for i in (0, 1))
    flat = kernel.isel(state=rows, state_=columns).drop_vars(("state", "state_"), errors="ignore")
    return flat.assign_coords(pair=[f"{a}-{b}" for a, b in kept])


def kernel_image(ax: "Axes", values: np.ndarray, title: str, top: float, *, low: float = 0.0) -> Any:
    """A (state, state) kernel as an image from ``low`` to ``top``, with its numbers where there is room."""
    image = ax.imshow(values, cmap=KERNEL_MAP, vmin=low, vmax=top, interpolation="nearest")
    ax.set(title=title, xlabel="state $b$", ylabel="state $a$")
    ax.set_xticks(range(len(values)))
    ax.set_yticks(range(len(values)))
    if len(values) <= N_ANNOTATED:
        for (i, j), value in np.ndenumerate(values):
            color = "black" if value > (low + top) / 2 else "white"
            ax.text(j, i, f"{round(value, 2) + 0.0:.2f}", ha="center", va="center", fontsize=7, color=color)
    return image


def bulk(ax: "Axes", radius: float) -> None:
    """The circle that random weights fill, and axes of equal scale."""
    angle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(radius * np.cos(angle), radius * np.sin(angle), color="black", linewidth=0.8, zorder=3)
    ax.set(aspect="equal", xlabel=r"$\mathrm{Re}\,z$", ylabel=r"$\mathrm{Im}\,z$")
