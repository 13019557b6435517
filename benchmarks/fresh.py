"""Measurements in a process of their own: one thread, a memory peak that is theirs alone. Linux only.

``fresh.call(function, ...)`` runs a function of a module in this folder in a new process and returns what it returns,
as JSON. Times are process times: the time of other programs on the machine does not count.
"""

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memory import process_mb
from peer_env import ONE_THREAD_FLOAT64_CPU

# widefield sets its own float64 scope, and each process compiles for itself.
ENVIRONMENT = {name: value for name, value in ONE_THREAD_FLOAT64_CPU.items() if name != "JAX_ENABLE_X64"}
ENVIRONMENT |= {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def call(function: Callable[..., Any], **arguments: Any) -> Any:
    """What ``function(**arguments)`` returns in a new process."""
    command = [sys.executable, __file__, function.__module__, function.__name__, json.dumps(arguments)]
    finished = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{function.__module__}.{function.__name__} failed:\n{finished.stderr[-2000:]}")
    return json.loads(finished.stdout.splitlines()[-1])


def seconds(function: Callable[[], Any]) -> float:
    """Process seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def times(functions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Compile and warm seconds of every function: a first call, then the fastest of ``repeats`` more.

    The functions take turns, so that a slow minute of the machine meets all of them.
    """
    first = {name: seconds(function) for name, function in functions.items()}
    warm = [{name: seconds(function) for name, function in functions.items()} for _ in range(repeats)]
    fastest = {name: min(turn[name] for turn in warm) for name in functions}
    return {name: {"compile_seconds": first[name] - t, "warm_seconds": t} for name, t in fastest.items()}


def peak_mb(before: float) -> float:
    """Peak memory of this process above ``before``, a VmRSS read earlier."""
    return process_mb("VmHWM") - before


def main() -> None:
    module, name, arguments = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parent))
    function = getattr(importlib.import_module(module), name)
    print(json.dumps(function(**json.loads(arguments))))


if __name__ == "__main__":
    main()
