"""The library's polynomial arcsine against XLA's."""

from functools import partial
from typing import Any

import fresh
import jax
import jax.numpy as jnp
import numpy as np
from tables import met, table

from widefield.gaussian.arcsine import arcsine

N_ENTRIES = 256 * 256  # one block of a kernel matrix
N_CALLS = 20
TARGET = 2.0


def measure(repeats: int) -> dict[str, Any]:
    """Nanoseconds an entry of both, and their largest difference."""
    with jax.enable_x64(True):
        s = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, N_ENTRIES))
        compiled = {"polynomial": jax.jit(arcsine), "XLA": jax.jit(jnp.arcsin)}

        def many(function):
            for _ in range(N_CALLS):
                function(s).block_until_ready()

        found = fresh.times({name: partial(many, f) for name, f in compiled.items()}, repeats)
        difference = float(jnp.max(jnp.abs(compiled["polynomial"](s) - jnp.arcsin(s))))
    per_entry = {name: 1e9 * t["warm_seconds"] / N_CALLS / N_ENTRIES for name, t in found.items()}
    return {"ns_per_entry": per_entry, "largest_difference": difference}


def run() -> dict[str, Any]:
    report = fresh.call(measure, repeats=10)
    ratio = report["ns_per_entry"]["XLA"] / report["ns_per_entry"]["polynomial"]
    return report | {"ratio": ratio, "met": ratio >= TARGET}


def show(report: dict[str, Any]) -> str:
    ns = report["ns_per_entry"]
    header = ("arcsine", "polynomial ns", "XLA ns", "ratio", "difference", "target", "met")
    row = ("an entry", ns["polynomial"], ns["XLA"], report["ratio"], report["largest_difference"])
    return table("Arcsine", header, [(*row, f"{TARGET:g}x", met([report["met"]]))])
