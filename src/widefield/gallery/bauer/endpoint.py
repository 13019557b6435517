"""Panel 5 of the poster, weak and strong labels at the last state: kernels of both architectures, spectrum of W."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.bauer import sampling
from widefield.gallery.bauer.sampling import FIRST, KINDS, SPECTRA, Blocks, Sampling, entries, limit

SIGNALS = ("weak", "strong")
GAUGE = "RNN, weak: odd lags are not compared, their sign is chosen in every network, which leaves a mean of order 1/√N"
N_SPECTRA = 4  # networks whose eigenvalues are drawn
OUTPUT = {"state": -1, "sample": 0, "output": 0}


@dataclass(frozen=True)
class Parameters(Sampling):
    """λ/λ_c = ``ratios``, weak and strong; hidden states T − 1 = ``depth``; chains start at random weights."""

    depth: int = 4
    ratios: tuple[float, float] = (0.3, 6.0)


FULL = Parameters()
QUICK = Parameters(width=128, n_chains=24, steps=120, warmup=80)


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Kernels, predictions and eigenvalues of both architectures at both strengths."""
    job = work.jobs(len(KINDS) * len(SIGNALS))
    cases = enumerate(product(KINDS, SIGNALS))
    blocks, trials = sampling.collect(one_case(p, kind, signal, p.seed + 2 * i, job) for i, (kind, signal) in cases)
    data = xr.merge(blocks)
    data.attrs.update(p.sizes)
    notes = ("2 · wide − narrow against infinite width", GAUGE, *sampling.mixing(trials))
    rows: kit.Panels = [[*_kernels(data, signal), partial(_spectrum, signal=signal)] for signal in SIGNALS]
    return kit.made(rows, data, p, sampling.verdicts(pairs(data), trials), size=(2.5, 2.4), notes=notes)


def one_case(p: Parameters, kind: str, signal: str, seed: int, job: kit.Job) -> Blocks:
    """Fields ``<kind>_<signal>_<quantity>``, sampled ones with dims (replicate, …)."""
    job(f"{kind}, {signal} signal: {p.n_chains} chains at widths {tuple(p.sizes.values())}")
    strength = p.ratios[SIGNALS.index(signal)] * float(sampling.critical_strength(p.depth, p.temperature))
    task, network = sampling.endpoint(strength), sampling.linear(kind, p.depth)
    state, spectra = sampling.theory(network, task, p.temperature), SPECTRA if kind == "RNN" else ()
    wanted, name = ("hidden", "prediction", *spectra), f"{kind}, {signal}"
    fields, trials = sampling.both_sizes(p, network, task, name, seed=seed, quantities=wanted, observe=observed)
    fields |= {"theory": state.hidden.isel(FIRST), "predicted": state.prediction.isel(OUTPUT)}
    if spectra:
        fields |= {part: trials[0][1].data[part] for part in spectra}
        fields["expected_outlier"] = xr.DataArray(abs(sampling.leading_eigenvalue(state, outside=True)))
    data = xr.Dataset({f"{kind}_{signal}_{name}": field for name, field in fields.items()})
    return data.drop_vars(("state", "sample", "output"), errors="ignore"), trials


def observed(trial: wf.Solution) -> dict[str, xr.DataArray]:
    """Kernel, output at the last state and, of recurrent networks, modulus of the largest eigenvalue."""
    fields = {"hidden": trial.hidden.isel(FIRST), "prediction": trial.prediction.isel(OUTPUT)}
    if "eigenvalue_real" in trial.data:
        fields["outlier"] = abs(sampling.eigenvalues(trial)).max("eigenvalue")
    return fields


def pairs(data: xr.Dataset) -> kit.Pairs:
    """Kernels, the prediction at the last state, and the eigenvalue outside the circle where there is one."""
    for signal in SIGNALS:
        for kind in KINDS:
            name, odd = f"{kind}_{signal}", kind == "DNN" or signal == "strong"
            kernel, sampled = (entries(k, odd=odd) for k in (data[f"{name}_theory"], limit(data, f"{name}_hidden")))
            yield kit.Pair(f"H {kind}, {signal}", kernel, sampled)
            yield kit.Pair(f"f {kind}, {signal}", data[f"{name}_predicted"], limit(data, f"{name}_prediction"))
        expected = data[f"RNN_{signal}_expected_outlier"]
        if expected > 0:
            yield kit.Pair(f"outlier |z|, {signal}", expected, limit(data, f"RNN_{signal}_outlier"))


def _kernels(data: xr.Dataset, signal: str) -> Iterator[kit.Panel]:
    """On one scale, whose bar stands beside the last."""
    scale = (0.0, max(float(data[f"{kind}_{signal}_theory"].max()) for kind in KINDS))
    for kind in KINDS:
        name, symbol = f"{kind}_{signal}", "$H_{ab}$" if kind == KINDS[-1] else ""
        sampled = data[f"{name}_hidden_wide"].mean("replicate")
        yield kit.image(data[f"{name}_theory"], f"{kind}, {signal}: theory", "", sampling.STATES, scale)
        yield kit.image(sampled, f"{kind}, {signal}: $N={data.attrs['wide']}$", symbol, sampling.STATES, scale)


def _spectrum(ax: kit.Axes, data: xr.Dataset, p: Parameters, signal: str) -> None:
    """Eigenvalues of a few networks, turned by the sign W → −W so that the largest has a positive real part."""
    spectra = sampling.eigenvalues(data, f"RNN_{signal}_").values[:N_SPECTRA]
    turned = [z * (np.sign(z[np.argmax(np.abs(z))].real) or 1.0) for z in spectra]
    sampling.spectrum_panel(ax, np.ravel(turned), 1.0, f"RNN, {signal}: $W$")
    expected = float(data[f"RNN_{signal}_expected_outlier"])
    if expected > 0:
        ax.plot(expected, 0, label="theory", **sampling.OUTLIER)
        ax.legend(loc="upper right")
    ax.set(xlim=(-1.3, 1.9), ylim=(-1.3, 1.3))
