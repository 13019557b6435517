"""Regression on handwritten digits shown row by row: one readout cannot tell deep from recurrent, many can.

Sec. 4.2 of Segadlo et al.: read out at a single state, the two architectures have the same kernel at infinite width,
even for sequences of inputs; read out at every state they do not.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

import widefield as wf
from widefield.gallery import kit
from widefield.gallery.segadlo.fig_1 import KINDS

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


def make(p: Parameters, work: kit.Work) -> kit.Made:
    """Test errors of both architectures and both readouts; finite networks check the kernels between states."""
    job, kernels = work.jobs(p.n_splits * len(p.n_train) + len(KINDS)), []
    data = kit.over({"split": range(p.n_splits), "n_train": p.n_train}, partial(one_split, p), job)
    for kind in KINDS:
        job(f"{kind}: {p.n_networks} finite networks of width {p.width}")
        kernels.append(readout_kernel(p, kind))
    differences = [difference(data, readout) for readout in READOUTS]
    last, every = (row.relative_error or 0.0 for row in differences)
    note = f"read out at one state the predictions differ by {last:.1e} of their largest, at every state by {every:.1e}"
    panels: list[kit.Panel] = [*(partial(_images, readout=readout) for readout in READOUTS), _rows]
    rows: list[kit.Pair | kit.Row] = [*kernels, *differences]
    made = kit.made([panels], data, p, rows, size=(3.3, 2.8), notes=(note,), numbers=errors(data), share="row")
    return replace(made, agrees=last <= SAME and made.agrees is not False)


@lru_cache(maxsize=1)
def images(p: Parameters, split: int) -> wf.Task:
    """Training images, as many as are needed at most, and test images, shown row by row and standardized."""
    task = wf.tasks.digits(max(p.n_train), p.n_test, seed=p.seed + split)
    assert task.x_test is not None
    middle, scale = task.x.mean(), task.x.std()
    rows = [((x - middle) / scale).reshape(-1, 8, 8) for x in (task.x, task.x_test)]
    return wf.Task(rows[0], task.y, x_test=rows[1], y_test=task.y_test)


def network(p: Parameters, kind: str) -> wf.Network:
    """One state per image row. Deep: every row through weights of its own. Recurrent: all through the same."""
    return getattr(wf, kind)(
        8, "relu", weight_variance=p.variance, bias_variance=p.bias_variance, readout_bias_variance=0.0,
        inputs="untied" if kind == "DNN" else "tied",
    )  # fmt: skip


def one_split(p: Parameters, i: int, split: int, n_train: int) -> xr.Dataset:
    """Errors (kind, readout, state), predictions' difference between the kinds (readout) and log evidence."""
    shown = images(p, split)
    assert shown.y is not None and shown.y_test is not None
    labels, digits = shown.y[:n_train], shown.y_test.argmax(axis=-1)
    cases = list(product(KINDS, READOUTS))
    predictions, log_evidence = {}, []
    for kind, readout in cases:
        y = labels if readout == "last" else np.repeat(labels[:, None], 8, axis=1)
        task = wf.Task(shown.x[:n_train], y, x_test=shown.x_test)
        wanted = ("test_prediction", "log_evidence")
        solution = wf.prior(network(p, kind), task, noise=p.noise, quantities=wanted, progress=False)
        predictions[kind, readout] = solution.test_prediction.transpose("state", "test", "output").values
        log_evidence.append(float(solution.log_evidence))
    wrong = np.array([(predictions[case].argmax(-1) != digits).mean(-1) for case in cases])
    last = [[predictions[kind, readout][-1] for kind in KINDS] for readout in READOUTS]
    largest = [[np.abs(recurrent - deep).max(), np.abs(deep).max()] for deep, recurrent in last]
    coords = {"kind": list(KINDS), "readout": list(READOUTS), "state": range(8), "part": ["difference", "prediction"]}
    fields: dict[str, Any] = {
        "error": (("kind", "readout", "state"), wrong.reshape(2, 2, 8)),
        "largest": (("readout", "part"), np.array(largest)),
        "log_evidence": (("kind", "readout"), np.reshape(log_evidence, (2, 2))),
    }
    return xr.Dataset(fields, coords=coords)


def readout_kernel(p: Parameters, kind: str) -> kit.Pair:
    """The kernel between all states of some images, of the theory and of finite networks."""
    net, task, wanted = network(p, kind), wf.Task(images(p, 0).x[: p.n_images]), ("readout",)
    theory = wf.prior(net, task, quantities=wanted, progress=False)
    trial = wf.simulate.prior(
        net, task, width=p.width, replicates=p.n_networks, seed=p.seed, quantities=wanted, progress=False
    )
    return kit.Pair(f"readout kernel, {kind}", theory.readout, trial.readout)


def difference(data: xr.Dataset, readout: str) -> kit.Row:
    """DNN (as theory) against RNN (as simulation): largest difference of two predictions at the last state."""
    largest = data.largest.sel(readout=readout).max(("split", "n_train"))
    gap, scale = largest.sel(part="difference", drop=True), float(largest.sel(part="prediction"))
    row = kit.judge(f"prediction RNN − DNN, {readout} state", 0 * gap, gap)
    return replace(row, relative_error=float(gap) / scale, n_entries=data.sizes["split"] * data.sizes["n_train"])


def errors(data: xr.Dataset) -> Iterator[dict[str, Any]]:
    """Test error at the last state: mean and standard error over the splits."""
    for readout, kind, n_train, case in kit.cases(data, "readout", "kind", "n_train"):
        values, log_evidence = case.error.isel(state=-1).values, float(case.log_evidence.mean())
        mean = {"test_error": float(values.mean()), "stderr": float(kit.stderr(values)), "log_evidence": log_evidence}
        yield {"quantity": "test error", "readout": readout, "kind": kind, "n_train": int(n_train), **mean}


def _images(ax: kit.Axes, data: xr.Dataset, p: Parameters, readout: str) -> None:
    _errors(ax, data.n_train.values, data.error.sel(readout=readout).isel(state=-1))
    ax.set(xlabel="training images", ylabel="test error", title=READOUTS[readout])
    kit.ticks_at(ax, data.n_train.values)
    if readout == "last":
        ax.legend()


def _rows(ax: kit.Axes, data: xr.Dataset, p: Parameters) -> None:
    most = int(data.n_train[-1])
    _errors(ax, data.state.values + 1, data.error.sel(readout="every", n_train=most))
    ax.set(xlabel="image rows shown, $a+1$", ylabel="test error", title=f"every state, {most} images")
    ax.set_ylim(bottom=0)


def _errors(ax: kit.Axes, x: np.ndarray, error: xr.DataArray) -> None:
    for kind, line in zip(KINDS, ("-", "--")):
        look: dict[str, Any] = {"color": kit.COLORS[kind], "marker": kit.MARKERS[kind], "size": 4.5, "capsize": 2}
        kit.points(ax, x, error.sel(kind=kind), over="split", label=kind, line=line, **look)
