"""The linear posterior: growth of its gradient, and its solver against SciPy's L-BFGS-B on the same function."""

from functools import partial
from typing import Any

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from scaling import exponent
from tables import met, table

import widefield as wf
from widefield.solvers import definite
from widefield.theories.posterior import problem as core
from widefield.theories.posterior.linear import free_energy as linear
from widefield.theories.posterior.linear import stationary

GROWTH = {  # what grows: network, sizes as (samples, depth), what the cost is plotted against, largest exponent allowed
    "tied, P·depth": (wf.RNN, [(12, 8), (24, 8), (48, 8), (96, 8)], lambda p, d: p * d, 3.1),
    "endpoint DNN, P": (wf.DNN, [(64, 6), (128, 6), (256, 6), (512, 6)], lambda p, d: p, 3.1),
    "endpoint DNN, depth": (wf.DNN, [(128, 4), (128, 8), (128, 16), (128, 32)], lambda p, d: d, 1.2),
}
POINTS = 50
CURVE = 14  # cold solves that a curve may cost; 10 of the dearer ones before repeated searches were cut short


def question(make: Any, n_samples: int, depth: int, *, sequences: bool = False) -> tuple[wf.Network, wf.Task]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_samples, depth, 30) if sequences else (n_samples, 2 * n_samples))
    return make(depth, "linear"), wf.Task(x, 3 * rng.normal(size=n_samples))


def problem(make: Any, n_samples: int, depth: int, *, sequences: bool = False) -> core.Problem:
    return core.problem_of(*question(make, n_samples, depth, sequences=sequences), 0.1)


def measure_growth(name: str) -> list[float]:
    """Warm seconds of one free energy with its gradient, for every size."""
    make, sizes, _, _ = GROWTH[name]
    compiled = jax.jit(linear.free_energy)
    found = []
    with jax.enable_x64(True):
        for n_samples, depth in sizes:
            layout = linear.layout_of(problem(make, n_samples, depth))
            S = jnp.broadcast_to(jnp.eye(layout.root.shape[-1]), (len(layout.root), *2 * layout.root.shape[-1:]))
            call = lambda S=S, layout=layout: jax.block_until_ready(compiled(S, layout))  # noqa: E731
            found.append(fresh.times({"gradient": call}, 5)["gradient"]["warm_seconds"])
    return found


def measure_solver(sequences: bool) -> dict[str, float]:
    """P = 10, depth 6: the trust region to 1e-11, SciPy until it stalls, the stability check, the public call."""
    with jax.enable_x64(True):
        layout = linear.layout_of(problem(wf.RNN, 10, 6, sequences=sequences))
        start = stationary._start(layout, 0.5, 1.0)
        r = start.shape[-1]
        rows, columns = np.tril_indices(r)

        @jax.jit
        def value_and_gradient(c):
            C = jnp.zeros((r, r)).at[rows, columns].set(c)
            value, G = linear.free_energy((C @ C.T)[None], layout)
            return value, (2 * G[0] @ C)[rows, columns]

        ours = partial(definite.minimize, linear.free_energy, start, (layout,), project=linear.unbroken)
        found = jax.block_until_ready(ours())
        c = np.linalg.cholesky(start[0])[rows, columns]
        scipys = partial(
            scipy.optimize.minimize, lambda c: [np.asarray(v) for v in value_and_gradient(c)], c, jac=True,
            method="L-BFGS-B", options={"maxiter": 20000, "maxfun": 50000, "ftol": 0.0, "gtol": 1e-14, "maxcor": 20},
        )  # fmt: skip
        stability = partial(definite.smallest_eigenvalue, linear.free_energy, found.point, (layout,))
        net, task = question(wf.RNN, 10, 6, sequences=sequences)
        public = partial(wf.posterior, net, task, temperature=0.1)
        calls = {
            "trust region": lambda: jax.block_until_ready(ours()), "scipy": scipys, "stability": stability,
            "posterior": public,
        }  # fmt: skip
        seconds = {name: t["warm_seconds"] for name, t in fresh.times(calls, 5).items()}
        stalled = scipys()
        return seconds | {
            "gradient": float(found.gradient),
            "scipy gradient": float(np.abs(stalled.jac).max()),
            "difference": float(stalled.fun - found.value),
        }


def measure_curve() -> dict[str, float]:
    """Cold solves of one point, and the whole curve of both branches, at T = 5."""
    net, task = wf.RNN(4, "linear"), wf.Task(np.ones((1, 1)), np.full(1, 2.0))
    calls = {
        "cold": lambda: wf.posterior(net, task, temperature=1.0),
        "curve": lambda: wf.transition(net, task, temperature=1.0, points=POINTS),
    }
    return {name: t["warm_seconds"] for name, t in fresh.times(calls, 5).items()}


def run() -> dict[str, Any]:
    print("measuring the posterior ...", flush=True)
    return {
        "growth": {name: fresh.call(measure_growth, name=name) for name in GROWTH},
        "solver": {str(s): fresh.call(measure_solver, sequences=s) for s in (False, True)},
        "curve": fresh.call(measure_curve),
    }


def show(results: dict[str, Any]) -> str:
    growth = []
    for name, seconds in results["growth"].items():
        _, sizes, against, limit = GROWTH[name]
        slope = exponent([against(*size) for size in sizes], seconds)
        growth.append([name, *seconds, slope, limit, met([slope <= limit])])
    solver = []
    for sequences, s in results["solver"].items():
        name = "sequences" if sequences == "True" else "input at state 0"
        ratio, check, public = (s[a] / s["trust region"] for a in ("scipy", "stability", "posterior"))
        row = [name, s["trust region"], f"{s['gradient']:.0e}", s["scipy"], f"{s['scipy gradient']:.0e}", ratio, check]
        solver.append([*row, public, met([ratio >= 1, check <= 1, public <= 8, s["gradient"] <= 1e-10])])
    curve = results["curve"]
    cost = curve["curve"] / curve["cold"]
    return "\n\n".join(
        [
            table(
                "Posterior: seconds of one gradient, growing size", ["", *"1234", "exponent", "limit", "met"], growth
            ),
            table(
                "Posterior, P·depth = 60: trust region against L-BFGS-B until it stalls",
                ["", "s", "gradient", "scipy s", "gradient", "ratio", "check / solve", "wf.posterior / solve", "met"],
                solver,
            ),
            table(
                f"Transition curve of {POINTS} points, all of it, in cold solves of one point",
                ["", "cold s", "curve s", "ratio", "met"],
                [["T = 5", curve["cold"], curve["curve"], cost, met([cost <= CURVE])]],
            ),
        ]
    )
