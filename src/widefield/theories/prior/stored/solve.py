"""`widefield.prior` with ``store=``: the same question, answered from tiles."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from widefield.answer import jobs
from widefield.answer.boundary import COPIES, choose_quantities, memory_budget
from widefield.answer.certificate import Certificate, Check, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Fields, Solution, make_solution
from widefield.answer.tiles import Known, digest_of
from widefield.gaussian import quadrature
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.prior import core
from widefield.theories.prior.core import Target
from widefield.theories.prior.residual import residual
from widefield.theories.prior.stored.kernel import FIELDS, StoredKernel, Unsolved, keep_rows, open_kernel
from widefield.theories.prior.stored.regression import TEST_ROWS, StoredRegression

REGRESSIONS = {"output": ("log_evidence", "test_prediction"), "ntk": ("ntk_prediction",)}  # what reads the factors
PAIRS = ("sample", "sample_")
PREDICTION = {"output": "test_prediction", "ntk": "ntk_prediction"}
DIMS = {"log_evidence": (), "test_prediction": ("state", "test", "output"), "ntk_prediction": ("test", "output")}
ON_REQUEST = ("ntk_prediction",)  # takes a factorization of its own
NEVER = ("readout", "hidden", "feature", "test_covariance")  # between states, or as large as the test inputs squared
SHOWN = 32  # samples out of which pairs are put back into the recursion


class Found(NamedTuple):
    """What came of a question: fields, and the numbers that success rests on."""

    fields: Fields
    checks: Mapping[str, float]
    notes: tuple[str, ...] = ()
    failure: Status | None = None


def stored_prior(
    network: Network,
    task: Task,
    noise: float,
    quantities: Iterable[str] | None,
    rtol: float,
    kind: np.dtype,
    store: Any,
    client: Any,
    progress: bool | None,
    throw: bool,
) -> Solution:
    """Fields of the last state from tiles in the folder ``store``, made in this process or by the workers of ``client``."""
    start = time.perf_counter()
    noise = checks.nonnegative("noise", noise)
    if client is not None:
        jobs.check_client(client)
    if store is None:
        raise ValueError("`client` needs `store`, a folder that all its workers see.")
    if task.supervised_states(network.depth) != (network.depth - 1,):
        raise ValueError("`store` is for tasks that supervise the last state alone; leave it out for other readouts.")
    plan = _plan(network, task, quantities)
    kernel = open_kernel(store, network, task.sequences(network.depth).astype(kind), rtol)
    try:
        found = _solve(kernel, task, noise, plan, client, progress)
    except Unsolved as unsolved:
        found = Found({}, {}, unsolved.notes, unsolved.status)
    certificate = Certificate(
        "prior",
        {name: Check(value, rtol) for name, value in found.checks.items()},
        found.failure,
        steps=network.depth,
        dtype=kind.name,
        wall_time=time.perf_counter() - start,
        options={"noise": noise, "quantities": list(plan), "rtol": rtol, "store": str(kernel.store.folder)},
        notes=(*task.notes, *found.notes),
        left_out=tuple(name for name in (*ON_REQUEST, *NEVER) if name not in plan) if quantities is None else (),
    )
    return make_solution(found.fields, certificate, network, task, throw=throw)


def _plan(network: Network, task: Task, quantities: Iterable[str] | None) -> tuple[str, ...]:
    """The fields that are made."""
    available = ["output"]
    if task.y is not None:
        available += ["log_evidence"] + ["test_prediction"] * (task.x_test is not None)
    if not quadrature.factor(network.activation, 1).deltas:
        available += ["ntk"] + ["ntk_prediction"] * ("test_prediction" in available)
    plan, _ = choose_quantities(quantities, dict.fromkeys(available, 0))
    return plan if quantities is not None else tuple(name for name in plan if name not in ON_REQUEST)


def _solve(
    kernel: StoredKernel, task: Task, noise: float, plan: tuple[str, ...], client: Any, progress: bool | None
) -> Found:
    """All tiles of the kernels, then what is asked of their regressions."""
    solved = [StoredRegression(kernel, field, noise) for field, names in REGRESSIONS.items() if set(names) & set(plan)]
    kernels = tuple(field for field in FIELDS if field in plan or field in [regression.field for regression in solved])
    n_pairs, entry = len(kernel.pairs), np.dtype(kernel.dtype).itemsize
    sizes = dict.fromkeys(kernels, entry) | dict.fromkeys([regression.factor_name for regression in solved], 8)
    room = {name: n_pairs * kernel.tile**2 * size for name, size in sizes.items()}
    kernel.store.require_room(room | {kernel.inputs: task.x.size * entry})
    n_predictions, n_blocks = len(set(PREDICTION.values()) & set(plan)), len(range(0, task.n_test, TEST_ROWS[-1]))
    n_jobs = 1 + n_pairs + len(solved) * (n_pairs + 1) + n_predictions * (n_blocks + 1)
    seconds = 1e-8 * kernel.n_samples**2 * kernel.network.depth + 1e-11 * kernel.n_samples**3 * len(solved)
    with bar("prior", n_jobs, progress, seconds) as advance:
        x = task.sequences(kernel.network.depth).astype(kernel.dtype)
        known = jobs.run([jobs.Job(kernel.inputs, partial(kernel.keep_inputs, x))], None, advance)
        known |= jobs.run(kernel.jobs(kernels), client, advance)
        residual = _violation(kernel, task, kernels)
        answers: dict[str, Any] = {}
        if residual <= kernel.rtol and _error(known) <= kernel.rtol:
            for regression in solved:
                made = _regress(regression, task, plan, client, advance)
                known |= made.known
                answers |= made.answers
                residual = float(np.maximum(residual, made.residual))
    matrices, where = _matrices(kernel, [field for field in kernels if field in plan])
    fields = matrices | {name: (DIMS[name], answers[name]) for name in plan if name in answers}
    return Found(fields, {"residual": residual, "error": _error(known)}, (*_notes(known), *where))


class Regressed(NamedTuple):
    """Answers by name, the residual of the linear equations, and what is known about all that was made."""

    answers: dict[str, Any]
    residual: float
    known: dict[str, Known]


def _regress(
    regression: StoredRegression, task: Task, plan: tuple[str, ...], client: Any, advance: Callable[[int], None]
) -> Regressed:
    kernel, y, prediction = regression.kernel, task.labels()[:, 0], PREDICTION[regression.field]
    known = jobs.run(regression.jobs(), client, advance)
    weights = regression.weights_name(y)
    known |= jobs.run([jobs.Job(weights, partial(regression.weigh, y))], None, advance)
    about = known[weights][weights]
    answers = {"log_evidence": about["log_evidence"]} if regression.field == "output" else {}
    if prediction in plan:
        x = task.sequences(kernel.network.depth, test=True)[task.n_samples :].astype(kernel.dtype)
        tests = f"tests-{digest_of(x)}"
        keep = partial(keep_rows, kernel.store, tests, x, TEST_ROWS[-1])
        known |= jobs.run([jobs.Job(f"{prediction}-{tests}", keep)], None, advance)
        work = regression.prediction_jobs(weights, tests, len(x))
        known |= jobs.run(work, client, advance)
        answers[prediction] = np.concatenate([kernel.store.read(job.name)[0] for job in work], axis=-2)
    return Regressed(answers, about["residual"], known)


def _error(known: dict[str, Known]) -> float:
    """The largest error estimate of an average; NaN where one is."""
    errors = [about["error"] for made in known.values() for about in made.values() if "error" in about]
    return float(np.max(errors))


def _notes(known: dict[str, Known]) -> tuple[str, ...]:
    """What is to be said about the arrays, and which of them were damaged and made again."""
    notes = [note for made in known.values() for about in made.values() for note in about.get("notes", ())]
    damaged = [name for made in known.values() for name, about in made.items() if about.get("damaged")]
    made_again = (f"damaged files in the store were made again: {', '.join(damaged)}",) if damaged else ()
    return (*dict.fromkeys(notes), *made_again)


class _Entries:
    """A matrix over some of the samples of which few entries are read."""

    ndim = 2

    def __init__(self, kernel: StoredKernel, field: str, samples: np.ndarray):
        self.kernel, self.field, self.samples = kernel, field, samples

    def __getitem__(self, at: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        size = self.kernel.tile
        places = [(a // size, b // size, a % size, b % size) for a, b in self.samples[np.asarray(at)].T]
        return np.asarray([self.kernel.read(self.field, i, j)[k, l] for i, j, k, l in places])


def _violation(kernel: StoredKernel, task: Task, fields: tuple[str, ...]) -> float:
    """Stored entries put back into the recursion, with averages by quadrature."""
    some = np.unique(np.linspace(0, kernel.n_samples - 1, SHOWN).astype(int))
    x = task.sequences(kernel.network.depth).astype(kernel.dtype)[some]
    samples = range(len(some))
    targets = {field: Target(FIELDS[field], None, None, samples, samples) for field in fields}
    matrices = core.fill_matrices(kernel.network, x, targets, kernel.rtol)
    entries: Any = {field: _Entries(kernel, field, some) for field in fields}
    return residual(kernel.network, matrices.kernel, matrices.variances, x, entries)


def _matrices(kernel: StoredKernel, fields: Iterable[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The kernels that were asked for: as arrays where they fit in memory, otherwise read from the store when they are used."""
    free, size = memory_budget() // COPIES, kernel.n_samples**2 * np.dtype(kernel.dtype).itemsize
    found, notes = {}, []
    for field in fields:
        if size <= free:
            free -= size
            found[field] = (PAIRS, _in_memory(kernel, field))
        elif find_spec("dask"):
            found[field] = (PAIRS, _on_disk(kernel, field))
            notes.append(f"`{field}` is read from {kernel.store.folder / field} when it is used")
        else:
            notes.append(f"`{field}` does not fit in memory; its tiles lie in {kernel.store.folder / field}")
    return found, tuple(notes)


def _in_memory(kernel: StoredKernel, field: str) -> np.ndarray:
    matrix, size = np.empty((kernel.n_samples,) * 2, kernel.dtype), kernel.tile
    for i, j in kernel.pairs:
        rows, columns = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
        matrix[rows, columns] = tile = kernel.read(field, i, j)
        if i != j:
            matrix[columns, rows] = tile.T
    return matrix


def _on_disk(kernel: StoredKernel, field: str) -> Any:
    from dask import array, delayed

    length = lambda k: min(kernel.tile, kernel.n_samples - k * kernel.tile)  # noqa: E731
    count = range(kernel.n_tiles)
    tile = lambda i, j: array.from_delayed(delayed(kernel.read)(field, i, j), (length(i), length(j)), kernel.dtype)  # noqa: E731
    return array.block([[tile(i, j) for j in count] for i in count])
