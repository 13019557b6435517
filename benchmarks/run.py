"""The library's benchmarks: ratios in one run, one thread. See README.md beside this file."""

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import arcsines
import dynamics
import finite_width
import first_calls
import kernels
import large
import peer_env
import posterior
import proportional
import scaling
import simulation
import stored
import sweep
from cases import CASES

SECTIONS = {
    "scaling": scaling, "simulation": simulation, "arcsine": arcsines, "posterior": posterior,
    "finite-width": finite_width, "proportional": proportional, "dynamics": dynamics, "large": large,
    "stored": stored, "sweep": sweep, "first-calls": first_calls,
}  # fmt: skip
PEER_FOLDER = Path(__file__).parents[1] / ".benchmarks" / "peer"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--peer", type=Path, default=PEER_FOLDER, metavar="FOLDER", help="neural-tangents' environment")
    peer.add_argument("--no-peer", action="store_true", help="measure widefield alone")
    names = (*CASES, *SECTIONS)
    parser.add_argument("--case", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """What a reader needs to judge the times."""
    return {
        "python": platform.python_version(),
        "jax": version("jax"),
        "widefield": version("widefield"),
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
    }


def peer_python(folder: Path) -> Path:
    """The peer's Python, its environment built if need be."""
    try:
        return peer_env.build(folder)
    except RuntimeError as error:
        raise SystemExit(f"{error}, or leave the peer out with --no-peer") from error


def save(results: dict[str, Any], out: Path | None) -> None:
    if out:
        out.write_text(json.dumps(results, indent=2, default=float) + "\n")


def main() -> None:
    options = arguments()
    results: dict[str, Any] = {"machine": machine()}
    print(*(f"{name} {value}" for name, value in results["machine"].items()), sep=", ")
    chosen = [name for name in CASES if name in options.case]
    if chosen:
        peer = None if options.no_peer else peer_python(options.peer)
        results["kernels"] = []
        for name in chosen:
            print(f"measuring {name} ...", flush=True)
            results["kernels"].append(kernels.run(name, peer))
            save(results, options.out)
        print("", kernels.show(results["kernels"]), sep="\n", flush=True)
    for name, section in SECTIONS.items():
        if name in options.case:
            results[name] = section.run()
            save(results, options.out)
            print("", section.show(results[name]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
