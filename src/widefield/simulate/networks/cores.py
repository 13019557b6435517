"""Networks on all cores: blocks of them at once, each with one thread of BLAS.

BLAS that splits one product over threads adds in another order, and on matrices of a network's size its threads wait for
each other more than they compute. Blocks of networks are independent: a seed gives the same bits on any number of cores.
"""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import lru_cache

import jax
from threadpoolctl import ThreadpoolController

from widefield.answer.interrupt import carried_settings
from widefield.simulate.networks.call import blocks

Advance = Callable[[int], None]
PATIENCE = 0.1  # seconds between two looks at whether the call was interrupted


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def cores() -> int:
    """Threads that BLAS may use: all cores, or what the user has set; one where it cannot be asked."""
    return max((library["num_threads"] for library in _blas().info()), default=1)


def in_flight(total: int, size: int) -> int:
    """Networks that are worked on at once, out of ``total`` in blocks of ``size``."""
    return min(total, size * cores())


def share(work: Callable[[slice, Advance], None], total: int, size: int, advance: Advance) -> None:
    """Call ``work`` for all blocks of ``size`` out of ``total``; it tells ``advance`` what it has finished.

    The first error ends the others at their next word to ``advance``.
    """
    n_cores, every = min(cores(), -(-total // size)), blocks(total, size)
    with _blas().limit(limits=1):
        if n_cores == 1:
            for block in every:
                work(block, advance)
            return
        ended, settings = threading.Event(), carried_settings()

        def checked(finished: int) -> None:
            if ended.is_set():
                raise InterruptedError
            advance(finished)

        def run(block: slice) -> None:
            with settings(), jax.enable_x64(True):
                work(block, checked)

        with ThreadPoolExecutor(n_cores, "widefield networks") as pool:
            pending = {pool.submit(run, block) for block in every}
            try:
                while pending:
                    done, pending = wait(pending, PATIENCE, FIRST_EXCEPTION)
                    for future in done:
                        future.result()
            finally:
                ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
