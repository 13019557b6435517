"""Regression with many samples: time, memory and residual, with a plain kernel and Cholesky in JAX beside it.

On a CPU one thread and process times; where there is an accelerator its sizes, and wall times.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from memory import process_mb
from tables import met, table

import widefield as wf

NOISE, TILE = 0.1, 1000


@dataclass(frozen=True)
class Large:
    """A regression and what it may take: ``ratio`` to the plain one, ``matrices`` of memory, ``warm`` and ``first`` seconds."""

    activation: str
    n_samples: int
    depth: int
    dimension: int = 784
    n_outputs: int = 10
    n_test: int = 1000
    quantities: tuple[str, ...] = ("ntk_prediction",)
    dtype: str = "float64"
    ratio: float | None = None
    matrices: float | None = 2.5
    warm: float | None = None
    first: float | None = None

    def task(self) -> wf.Task:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((self.n_samples + self.n_test, self.dimension))
        y = np.tanh(x[: self.n_samples] @ rng.standard_normal((self.dimension, self.n_outputs)) / self.dimension**0.5)
        return wf.Task(x[: self.n_samples], y, x_test=x[self.n_samples :])

    def ask(self, task: wf.Task) -> wf.Solution:
        net = wf.DNN(self.depth, self.activation, weight_variance=2.0, bias_variance=0.1)
        options: dict[str, Any] = {"quantities": self.quantities, "dtype": self.dtype}
        return wf.prior(net, task, noise=NOISE, progress=False, throw=False, **options)

    @property
    def matrix_mb(self) -> float:
        return np.dtype(self.dtype).itemsize * self.n_samples**2 / 1e6


CPU = (
    Large("relu", 5000, 3, 100, 1, 500, ("test_prediction", "log_evidence"), ratio=3),
    Large("relu", 5000, 3, 100, 1, 500, ratio=3),
    Large("relu", 5000, 3, 100, 1, 500, dtype="float32", matrices=None),
)
ACCELERATOR = (
    Large("relu", 10_000, 30, warm=1),
    Large("relu", 60_000, 10, n_test=10_000, matrices=2.2, warm=10, first=40),
    *(Large(activation, 20_000, 10) for activation in ("relu", "erf", "tanh")),
    Large("relu", 60_000, 10, dtype="float32", matrices=None),
)


def clock(on_cpu: bool) -> float:
    return time.process_time() if on_cpu else time.perf_counter()


def seconds(function: Callable[[], Any], on_cpu: bool) -> float:
    start = clock(on_cpu)
    function()
    return clock(on_cpu) - start


def measure(index: int, on_cpu: bool) -> dict[str, Any]:
    """First and warm seconds, memory in kernel matrices, and the seconds of the plain way."""
    case = (CPU if on_cpu else ACCELERATOR)[index]
    small, task = Large(case.activation, 600, case.depth, case.dimension, 1, 10, case.quantities), case.task()
    small.ask(small.task())
    before = process_mb("VmHWM")
    first = seconds(partial(case.ask, task), on_cpu)
    used = process_mb("VmHWM") - before if on_cpu else jax.devices()[0].memory_stats()["peak_bytes_in_use"] / 1e6
    warm = min(seconds(partial(case.ask, task), on_cpu) for _ in range(2))
    solution = case.ask(task)
    answer = {"first": first, "warm": warm, "matrices": used / case.matrix_mb, "residual": solution.residual}
    answer |= {"status": solution.status.name, "plain": None}
    if case.activation == "relu" and case.dtype == "float64":
        plain(case, task)
        answer["plain"] = min(seconds(partial(plain, case, task), on_cpu) for _ in range(2))
    return answer


@partial(jax.jit, static_argnums=2)
def relu_block(x: jax.Array, y: jax.Array, depth: int) -> tuple[jax.Array, jax.Array]:
    """Covariance and tangent kernel of the readouts, from the arc-cosine formulas as they are printed."""
    q, p = ((v * v).mean(1) for v in (x, y))
    C = theta = x @ y.T / x.shape[1] + 0.1
    q, p = q + 0.1, p + 0.1
    for layer in range(depth):
        size = jnp.sqrt(q[:, None] * p)
        rho = jnp.clip(C / size, -1, 1)
        angle = jnp.arccos(rho)
        value = size / (2 * jnp.pi) * (jnp.sqrt(1 - rho**2) + (jnp.pi - angle) * rho)
        slope = (jnp.pi - angle) / (2 * jnp.pi)
        if layer == depth - 1:
            break
        C = 2 * value + 0.1
        theta, q, p = C + 2 * slope * theta, q + 0.1, p + 0.1
    readout = value + 0.1
    return readout, readout + slope * theta


def plain(case: Large, task: wf.Task) -> np.ndarray:
    """Blocks of the kernel, its Cholesky factor and the prediction at the last state."""
    which = 1 if case.quantities == ("ntk_prediction",) else 0
    with jax.enable_x64(True):
        x, tests = jnp.asarray(task.x), jnp.asarray(task.x_test)
        starts = range(0, len(x), TILE)
        rows = [[relu_block(x[i : i + TILE], x[j : j + TILE], case.depth)[which] for j in starts] for i in starts]
        if jax.default_backend() == "cpu":
            K = np.block([[np.asarray(block) for block in row] for row in rows])
            K[np.diag_indices(len(K))] += NOISE
            weights = scipy.linalg.cho_solve(scipy.linalg.cho_factor(K, lower=True, overwrite_a=True), task.y)
        else:
            K = jnp.concatenate([jnp.concatenate(row, 1) for row in rows])
            del rows
            weights = _solve(K, jnp.asarray(task.y))
        return np.asarray(relu_block(tests, x, case.depth)[which] @ weights)


@partial(jax.jit, donate_argnums=0)
def _solve(K: jax.Array, y: jax.Array) -> jax.Array:
    K = K + NOISE * jnp.eye(len(K))
    return jax.scipy.linalg.cho_solve((jax.lax.linalg.cholesky(K, symmetrize_input=False), True), y)


def has_accelerator() -> bool:
    """Asked in a process of its own, which takes no memory from the others."""
    program = "import jax; print(jax.default_backend())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return found.stdout.strip() != "cpu"


def run() -> list[dict[str, Any]]:
    on_cpu = not has_accelerator()
    rows = []
    for index, case in enumerate(CPU if on_cpu else ACCELERATOR):
        if not on_cpu:
            fresh.ENVIRONMENT.pop("JAX_PLATFORMS", None)
        found = fresh.call(measure, index=index, on_cpu=on_cpu)
        limits = {name: getattr(case, name) for name in ("matrices", "warm", "first")}
        answers = [found["status"] == "success", *(found[n] <= most for n, most in limits.items() if most)]
        if case.ratio:
            answers.append(found["warm"] <= case.ratio * found["plain"])
        where = "one core" if on_cpu else "accelerator"
        rows.append({"case": f"{case.activation}, P = {case.n_samples}, depth {case.depth}", **found, "where": where,
                     "asked": ", ".join(case.quantities), "dtype": case.dtype, "met": met(answers)})  # fmt: skip
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    header = (
        "case",
        "where",
        "asked",
        "dtype",
        "first s",
        "warm s",
        "plain s",
        "matrices",
        "residual",
        "status",
        "met",
    )
    cells = [
        (r["case"], r["where"], r["asked"], r["dtype"], r["first"], r["warm"], r["plain"], r["matrices"],
         f"{r['residual']:.0e}", r["status"], r["met"])
        for r in rows
    ]  # fmt: skip
    return table("Regression with many samples", header, cells)
