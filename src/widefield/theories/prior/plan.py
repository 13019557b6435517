"""What a call makes, where, and whether it fits: decided before any work."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.answer import boundary
from widefield.answer.boundary import COPIES, choose_quantities, describe_bytes
from widefield.gaussian import quadrature
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.prior.core import Target, device
from widefield.theories.prior.regression import needs_spectrum

REGRESSION = {
    "log_evidence": (),
    "test_prediction": ("state", "test", "output"),
    "ntk_prediction": ("state", "test", "output"),
    "test_covariance": ("state", "state_", "test", "test_"),
}
KERNEL_OF = {
    "log_evidence": "readout",
    "test_prediction": "readout",
    "test_covariance": "readout",
    "ntk_prediction": "tangent",
}
DIFFERENCE = "test_covariance"
SHARE = 1.25  # of a matrix factored in place, with tiles and programs beside it (measured: 1.26 of 200 MB)


@dataclass(frozen=True)
class Regressions:
    """Noises and times at which regressions are wanted, and whether these are axes of the answer."""

    noises: np.ndarray
    times: np.ndarray
    dims: tuple[str, ...]

    @property
    def spectral(self) -> dict[str, bool]:
        """Whether the kernel of a field is decomposed, not only factored."""
        never = np.asarray([np.inf])
        return {"readout": needs_spectrum(self.noises, never), "tangent": needs_spectrum(self.noises, self.times)}

    @property
    def coords(self) -> dict[str, np.ndarray]:
        """Values along the axes."""
        return {name: v for name, v in (("noise", self.noises), ("time", self.times)) if name in self.dims}


def make_regressions(noise: Any, time: Any) -> Regressions:
    """From the arguments of the same names, each a number or a one-dimensional array; a time may be infinite."""
    noises, noise_dims = _axis("noise", noise, False)
    times, time_dims = _axis("time", np.inf if time is None else time, True)
    return Regressions(noises, times, noise_dims + time_dims)


def _axis(name: str, given: Any, infinite: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    array = checks.as_array(name, given, "a number or a 1-D array")
    if array.ndim > 1 or array.size == 0 or (array.ndim and array.dtype.kind not in "fiu"):
        raise ValueError(f"`{name}` must be a number or a 1-D array of numbers, got {checks.shown(given)}.")
    entries = array if array.ndim else [given]
    values = [np.inf if infinite and np.isscalar(v) and v == np.inf else checks.nonnegative(name, v) for v in entries]
    return np.asarray(values), (name,) * array.ndim


@dataclass(frozen=True)
class Plan:
    """``names`` of the fields to return, ``targets`` to fill on the host, and kernels to fill and keep on a device.

    ``device`` maps a state to the fields of its block with itself. ``stored`` says that rows of test inputs are among
    the targets.
    """

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    supervised: tuple[int, ...]
    targets: dict[str, Target]
    device: dict[int, tuple[str, ...]]
    stored: bool

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that a regression is made with."""
        return tuple(sorted({KERNEL_OF[name] for name in self.names if name in REGRESSION}))

    @property
    def tests(self) -> bool:
        """Whether test inputs are read."""
        return any(name in REGRESSION and name != "log_evidence" for name in self.names)


def make_plan(
    network: Network, task: Task, quantities: Iterable[str] | None, regressions: Regressions, itemsize: int
) -> Plan:
    """Raises `MemoryError` where what is asked for fits neither on a device nor on the host."""
    depth, n = network.depth, task.n_samples
    supervised = task.supervised_states(depth)
    task.sequences(depth)
    every, train, test = range(depth), range(n), range(n, n + task.n_test)
    readouts = None if len(supervised) == 1 else every
    targets = {
        "output": Target("readout", None, None, train, train),
        "test_covariance": Target("readout", every, every, test, test),
        "ntk": Target("tangent", readouts, readouts, train, train),
        "readout": Target("readout", every, every, train, train),
        "hidden": Target("hidden", every, every, train, train),
        "feature": Target("feature", every, every, train, train),
    }
    available = _available(network, task)
    single = itemsize == 4 and DIFFERENCE in available  # nearly equal numbers, of which single precision leaves little
    if single:
        if quantities is not None and DIFFERENCE in ((quantities,) if isinstance(quantities, str) else quantities):
            raise ValueError(f"`dtype` must be 'float64' for `{DIFFERENCE}`, got 'float32'.")
        available.remove(DIFFERENCE)
    on_device = _fits_on_device(network, task, quantities, available, supervised, regressions, itemsize)
    sizes = _sizes(
        network,
        task,
        targets,
        available,
        quantities,
        supervised,
        regressions,
        0 if on_device and len(supervised) == 1 else itemsize,
    )
    names, left_out = _choose(task, sizes, quantities)
    if single:
        left_out = (*left_out, DIFFERENCE)
    fields = {name: targets[name] for name in names if name in targets}
    kernels = {KERNEL_OF[name] for name in names if name in REGRESSION}
    stored, needed = "test_covariance" in names, dict(fields)
    on: dict[int, set[str]] = {}
    for name in ("output", "ntk"):
        if on_device and name in needed and needed[name].states is None:
            on.setdefault(depth - 1, set()).add(needed.pop(name).field)
    for field in kernels:
        if on_device and len(supervised) == 1:
            on.setdefault(supervised[0], set()).add(field)
        else:
            needed[f"{field} of training"] = Target(field, supervised, supervised, train, train, joint=True)
        rows = every if field == "readout" or len(supervised) > 1 else supervised
        if stored:
            needed[f"{field} of tests"] = Target(field, rows, supervised, test, train)
    device_fields = {state: tuple(sorted(of_state)) for state, of_state in on.items()}
    return Plan(names, left_out, supervised, needed, device_fields, stored)


def _available(network: Network, task: Task) -> list[str]:
    """Quantities that the question has, the most wanted first."""
    regression = ["log_evidence"] if task.y is not None else []
    if task.y is not None and task.x_test is not None:
        regression = list(REGRESSION)
    names = ["output", *regression, "ntk", "readout", "hidden", "feature"]
    if quadrature.factor(network.activation, 1).deltas:  # a jump: the slope is a delta function, the kernel infinite
        names = [name for name in names if name not in ("ntk", "ntk_prediction")]
    return names


def _choose(
    task: Task, sizes: dict[str, int], quantities: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    budget = boundary.memory_budget()
    try:
        kept, left_out = choose_quantities(quantities, sizes, budget)
    except MemoryError as error:
        raise MemoryError(f"{error} {_what_fits(task, sizes, quantities)}") from None
    if "log_evidence" not in kept and quantities is None:  # a regression reads what does not fit
        kept = tuple(name for name in kept if KERNEL_OF.get(name) != "readout")
        left_out = tuple(name for name in sizes if name not in kept)
    if not kept:
        need, free = describe_bytes(sizes["output"]), describe_bytes(budget)
        raise MemoryError(f"Not even `output` ({need}) fits in {free}. {_what_fits(task, sizes, ('output',))}")
    return kept, left_out


def _sizes(
    network: Network,
    task: Task,
    targets: dict[str, Target],
    available: list[str],
    quantities: Iterable[str] | None,
    supervised: tuple[int, ...],
    regressions: Regressions,
    itemsize: int,
) -> dict[str, int]:
    """Bytes of every quantity at its peak; the kernel of a regression is counted with the first that reads it.

    ``itemsize`` is that of such a kernel, zero where it is on a device.
    """
    depth, n_test, joint = network.depth, task.n_test, len(supervised) * task.n_samples
    n_noises, n_times = len(regressions.noises), len(regressions.times)
    n_outputs = task.labels().shape[2] if task.y is not None else 0
    sizes = {name: COPIES * 8 * int(np.prod(targets[name].shape)) for name in available if name in targets}
    if "test_prediction" in available:
        each = COPIES * 8 * n_test * n_outputs * n_noises
        sizes |= {"test_prediction": each * depth, "ntk_prediction": each * n_times}
        sizes["test_covariance"] = 8 * ((1 + COPIES * n_noises) * (depth * n_test) ** 2 + 3 * depth * n_test * joint)
    sizes |= {"log_evidence": 8 * n_noises} if "log_evidence" in available else {}
    asked = (quantities,) if isinstance(quantities, str) else available if quantities is None else tuple(quantities)
    for field, spectral in regressions.spectral.items():
        reader = next((name for name in asked if KERNEL_OF.get(name) == field and name in sizes), None)
        if reader:
            sizes[reader] += int((itemsize) * joint**2 * (SHARE + spectral))
    return {name: sizes[name] for name in available}


def _fits_on_device(
    network: Network,
    task: Task,
    quantities: Iterable[str] | None,
    available: list[str],
    supervised: tuple[int, ...],
    regressions: Regressions,
    itemsize: int,
) -> bool:
    """Whether there is an accelerator with room for the matrices at one state that are asked for."""
    free = device.free_bytes()
    if free is None:
        return False
    asked = (quantities,) if isinstance(quantities, str) else available if quantities is None else tuple(quantities)
    last = network.depth - 1
    matrices = {(last, {"output": "readout", "ntk": "tangent"}[name]) for name in asked if name in ("output", "ntk")}
    if len(supervised) == 1:
        matrices |= {(supervised[0], KERNEL_OF[name]) for name in asked if name in REGRESSION}
    fields = {field for name in asked for field in (KERNEL_OF.get(name),) if field}
    spectral = any(regressions.spectral[field] for field in fields)
    return device.needed_bytes(task.n_samples, len(matrices), spectral, itemsize) <= free


def _what_fits(task: Task, sizes: dict[str, int], quantities: Iterable[str] | None) -> str:
    need = sum(sizes[name] for name in ((quantities,) if isinstance(quantities, str) else quantities or sizes))
    share = float(np.sqrt(boundary.memory_budget() / need))
    tests = f" and {int(share * task.n_test)} test inputs" if task.n_test else ""
    where = f" On the device {describe_bytes(free)} are free." if (free := device.free_bytes()) is not None else ""
    return f"About {int(share * task.n_samples)} samples{tests} would fit.{where}"
