"""One case on neural-tangents, in a process of its own; prints one JSON line.

Run by the peer environment's Python through ``peer_env.run_case``, which sets the environment
variables that make it single-threaded and float64. Does not import widefield. Linux only.

Times are process times. ``compile_seconds`` is the first call minus the fastest later one.
``memory_mb`` is the peak resident memory minus what is resident after import.
"""

import argparse
import json
import math
import resource
import time
import warnings

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from cases import CASES, N_COMPARED, Case
from memory import process_mb
from neural_tangents import stax

QUADRATURE_ORDER = 25  # where neural-tangents' documentation tells users to start
QUANTITIES = ("nngp", "ntk")


def limit_memory(gigabytes: float) -> None:
    """Refuse more than ``gigabytes`` of new address space, so that the machine stays usable."""
    limit = int(process_mb("VmSize") * 1e6 + gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def kernel_function(case: Case):
    """neural-tangents' kernel function of the network, with closed forms where it has them."""
    layers = {
        "relu": stax.Relu,
        "erf": stax.Erf,
        "tanh": lambda: stax.ElementwiseNumerical(jnp.tanh, deg=QUADRATURE_ORDER),
    }

    def dense():
        return stax.Dense(
            1,  # the width does not enter the kernels
            W_std=math.sqrt(case.weight_variance),
            b_std=math.sqrt(case.bias_variance),
            parameterization="ntk",
        )

    hidden = [layer for _ in range(case.n_hidden) for layer in (dense(), layers[case.activation]())]
    return stax.serial(*hidden, dense())[2]


def as_called(kernel, how: str, block: int):
    """The kernel function as a user would call it: under jit, op by op, or block by block."""
    if how == "blocks":
        blocked = nt.batch(kernel, batch_size=block, device_count=0, store_on_device=False)
        return lambda x: blocked(x, None, QUANTITIES)

    def whole(x):
        return kernel(x, None, QUANTITIES)

    return jax.jit(whole) if how == "jit" else whole


def timed(function, x):
    """Process seconds, wall seconds and the first samples' kernels of one call."""
    process, wall = time.process_time(), time.perf_counter()
    result = jax.block_until_ready(function(x))
    process, wall = time.process_time() - process, time.perf_counter() - wall
    first = np.s_[:N_COMPARED, :N_COMPARED]
    corner = {name: np.asarray(getattr(result, name)[first]) for name in QUANTITIES}
    return process, wall, corner


def measure(function, x, repeats: int) -> tuple[dict, dict]:
    """Times and memory of a first call and ``repeats`` warm ones, and the kernels."""
    before = process_mb("VmRSS")
    first, _, corner = timed(function, x)
    process, wall, _ = min((timed(function, x) for _ in range(repeats)), key=lambda call: call[0])
    report = {
        "status": "ok",
        "compile_seconds": first - process,
        "warm_seconds": process,
        "warm_wall_seconds": wall,
        "memory_mb": process_mb("VmHWM") - before,
    }
    return report, corner


def main() -> None:
    parser = argparse.ArgumentParser(description="Time neural-tangents on one case.")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--how", choices=("jit", "eager", "blocks"), default="jit")
    parser.add_argument("--block", type=int, default=100, help="samples in a block")
    parser.add_argument("--repeats", type=int, default=3, help="warm calls")
    parser.add_argument("--memory-limit", type=float, default=23.0, help="in GB, beyond import")
    parser.add_argument("--kernels", help="write the first samples' kernels to this .npz file")
    options = parser.parse_args()

    warnings.simplefilter("ignore")
    case = CASES[options.case]
    function = as_called(kernel_function(case), options.how, options.block)
    limit_memory(options.memory_limit)
    try:
        report, corner = measure(function, case.inputs(), options.repeats)
        if options.kernels:
            np.savez(options.kernels, **corner)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        report = {"status": "out of memory", "error": str(error).splitlines()[0]}
    print(json.dumps({"case": options.case, "how": options.how, **report}))


if __name__ == "__main__":
    main()
