"""Regression on handwritten digits shown row by row: one readout cannot tell deep from recurrent, many can.

Sec. 4.2 of Segadlo et al.: read out at a single state, the two architectures have the same kernel at infinite width,
even for sequences of inputs; read out at every state they do not.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import widefield as wf
from widefield.compare import HEADER, Pair, Row, cells, judge_all
from widefield.gallery.record import Made, Report
from widefield.plot.style import COLORS, MARKERS, Figure, house_style, letter, panels, stderr
from widefield.question.network import Network

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

KINDS = ("DNN", "RNN")
READOUTS = {"last": "read out at the last state", "every": "read out at every state"}
SAME = 1e-8  # predictions of one architecture and the other, relative to their largest


@dataclass(frozen=True)
class Parameters:
    """Images of 8 × 8 pixels, one row per state; labels are one-hot minus 1/10; averages over random splits."""

    n_train: tuple[int, ...] = (25, 50, 100, 200, 400, 800)
    n_test: int = 500
    n_splits: int = 10
    variance: float = 1.8
    bias_variance: float = 0.1
    noise: float = 0.1
    n_images: int = 5
    width: int = 2000
    n_networks: int = 60
    seed: int = 2025


FULL = Parameters()
QUICK = Parameters(n_train=(25, 50, 100, 200), n_test=200, n_splits=3)


def make(parameters: Parameters, *, out: Path, full: bool, report: Report) -> Made:
    """Test errors of both architectures and both readouts; finite networks check the kernels between states."""
    import xarray as xr

    p, blocks = parameters, []
    jobs = list(itertools.product(range(p.n_splits), p.n_train))
    for i, (split, n_train) in enumerate(jobs):
        report(i, len(jobs) + 2, f"{n_train} training images, split {split + 1} of {p.n_splits}")
        block = one_split(p, split, n_train)
        blocks.append(block.expand_dims(split=[split], n_train=[n_train]))
    data = xr.combine_by_coords(blocks)
    assert isinstance(data, xr.Dataset)
    kernels = []
    for i, kind in enumerate(KINDS):
        report(len(jobs) + i, len(jobs) + 2, f"{kind}: {p.n_networks} finite networks of width {p.width}")
        kernels.append(readout_kernel(p, kind))
    report(len(jobs) + 2, len(jobs) + 2, "drawing")
    checks = judge_all(kernels)
    differences = [difference(data, readout) for readout in READOUTS]
    same = differences[0].relative_error <= SAME
    note = (
        f"read out at one state the predictions differ by {differences[0].relative_error:.1e} of their largest, "
        f"at every state by {differences[1].relative_error:.1e}"
    )
    return Made(
        draw(data),
        data,
        p,
        numbers=[row.to_dict() for row in (*checks, *differences)] + list(errors(data)),
        table=[HEADER, *(cells(row) for row in (*checks, *differences))],
        agrees=same and checks.agrees is not False,
        notes=(note,),
    )


@lru_cache(maxsize=1)
def load(p: Parameters, split: int) -> wf.Task:
    """Training images, as many as are needed at most, and test images, shown row by row and standardised."""
    task = wf.tasks.digits(max(p.n_train), p.n_test, seed=p.seed + split)
    assert task.x_test is not None
    middle, scale = task.x.mean(), task.x.std()
    rows = [((x - middle) / scale).reshape(-1, 8, 8) for x in (task.x, task.x_test)]
    return wf.Task(rows[0], task.y, x_test=rows[1], y_test=task.y_test)


def network(p: Parameters, kind: str) -> Network:
    """One state per image row. Deep: every row through weights of its own. Recurrent: all through the same."""
    return getattr(wf, kind)(
        depth=8,
        activation="relu",
        weight_variance=p.variance,
        bias_variance=p.bias_variance,
        readout_bias_variance=0.0,
        inputs="untied" if kind == "DNN" else "tied",
    )


def one_split(p: Parameters, split: int, n_train: int) -> "xr.Dataset":
    """Errors (kind, readout, state), predictions' difference between the kinds (readout) and evidence."""
    import xarray as xr

    images = load(p, split)
    assert images.y is not None and images.y_test is not None
    labels, digits = images.y[:n_train], images.y_test.argmax(axis=-1)
    predictions, evidence = {}, {}
    for readout, kind in itertools.product(READOUTS, KINDS):
        y = labels if readout == "last" else np.repeat(labels[:, None], 8, axis=1)
        task = wf.Task(images.x[:n_train], y, x_test=images.x_test)
        wanted = ("test_prediction", "log_evidence")
        solution = wf.prior(network(p, kind), task, noise=p.noise, quantities=wanted, progress=False)
        predictions[kind, readout] = solution.test_prediction.transpose("state", "test", "output").values
        evidence[kind, readout] = float(solution.log_evidence)
    wrong = [[predictions[k, r].argmax(-1) != digits for r in READOUTS] for k in KINDS]
    last = {r: [predictions[k, r][-1] for k in KINDS] for r in READOUTS}
    largest = [[np.abs(last[r][1] - last[r][0]).max(), np.abs(last[r][0]).max()] for r in READOUTS]
    coords = {"kind": list(KINDS), "readout": list(READOUTS), "state": range(8), "part": ["difference", "prediction"]}
    fields: dict[str, Any] = {
        "error": (("kind", "readout", "state"), np.mean(wrong, axis=-1)),
        "largest": (("readout", "part"), np.array(largest)),
        "log_evidence": (("kind", "readout"), np.array([[evidence[k, r] for r in READOUTS] for k in KINDS])),
    }
    return xr.Dataset(fields, coords=coords)


def readout_kernel(p: Parameters, kind: str) -> Pair:
    """The kernel between all states of some images, of the theory and of finite networks."""
    task = wf.Task(load(p, 0).x[: p.n_images])
    theory = wf.prior(network(p, kind), task, quantities=("readout",), progress=False)
    trial = wf.simulate.prior(
        network(p, kind),
        task,
        width=p.width,
        replicates=p.n_networks,
        seed=p.seed,
        quantities=("readout",),
        progress=False,
    )
    return Pair(f"readout kernel, {kind}", theory.readout, trial.readout)


def difference(data: "xr.Dataset", readout: str) -> Row:
    """DNN (as theory) against RNN (as simulation): largest difference of two predictions at the last state."""
    largest = data.largest.sel(readout=readout).max(("split", "n_train"))
    gap, scale = float(largest.sel(part="difference")), float(largest.sel(part="prediction"))
    return Row(
        quantity=f"prediction RNN − DNN, {readout} state",
        index=(),
        theory=0.0,
        simulation=gap,
        stderr=None,
        z=None,
        z_rms=None,
        relative_error=gap / scale,
        limit=None,
        agrees=None,
        n_entries=data.sizes["split"] * data.sizes["n_train"],
        n_replicates=0,
    )


def errors(data: "xr.Dataset") -> Iterator[dict[str, Any]]:
    """Test error at the last state: mean and standard error over the splits."""
    for readout, kind, n_train in itertools.product(READOUTS, KINDS, data.n_train.values):
        values = data.error.sel(readout=readout, kind=kind, n_train=n_train).isel(state=-1).values
        evidence = float(data.log_evidence.sel(readout=readout, kind=kind, n_train=n_train).mean())
        mean = {"test_error": float(values.mean()), "stderr": float(stderr(values)), "log_evidence": evidence}
        yield {"quantity": "test error", "readout": readout, "kind": kind, "n_train": int(n_train), **mean}


def draw(data: "xr.Dataset") -> Figure:
    """Error against the number of images for both readouts, and against the number of rows seen."""
    most = int(data.n_train[-1])
    with house_style():
        figure, axes = panels(1, 3, size=(3.3, 2.8))
        for ax, readout in zip(axes[0], READOUTS, strict=False):
            _curves(ax, data.n_train.values, data.error.sel(readout=readout).isel(state=-1), "n_train")
            ax.set(xscale="log", xlabel="training images", ylabel="test error", title=READOUTS[readout])
            ax.set_xticks(data.n_train.values, [str(n) for n in data.n_train.values])
            ax.minorticks_off()
        top = max(ax.get_ylim()[1] for ax in axes[0, :2])
        for ax in axes[0, :2]:
            ax.set_ylim(0, top)
        seen = data.error.sel(readout="every", n_train=most)
        _curves(axes[0, 2], data.state.values + 1, seen, "state")
        axes[0, 2].set(xlabel="image rows seen, $a+1$", ylabel="test error", title=f"every state, {most} images")
        axes[0, 2].set_ylim(bottom=0)
        axes[0, 0].legend()
        for ax, name in zip(axes[0], "abc", strict=True):
            letter(ax, name)
    return figure


def _curves(ax: "Axes", x: np.ndarray, error: "xr.DataArray", along: str) -> None:
    for kind, line in zip(KINDS, ("-", "--"), strict=True):
        samples = error.sel(kind=kind).transpose("split", along).values
        mean, spread = samples.mean(axis=0), stderr(samples)
        bars = ax.errorbar(x, mean, yerr=spread, capsize=2, label=kind, color=COLORS[kind])
        bars[0].set(marker=MARKERS[kind], linestyle=line)
