"""Blocks of networks on several cores: each once, an error ends all, settings of JAX and threads of BLAS are as they were."""

import threading
import time

import jax
import numpy as np
import pytest

from widefield.simulate.networks import cores
from widefield.simulate.networks.cores import share


@pytest.fixture(params=[1, 3])
def n_cores(request, monkeypatch):
    monkeypatch.setattr(cores, "cores", lambda: request.param)
    return request.param


def test_every_block_once(n_cores):
    seen, told, threads = np.zeros(11, int), [], set()

    def work(block, advance):
        time.sleep(0.01)
        seen[block] += 1
        threads.add(threading.get_ident())
        assert jax.numpy.asarray(1.0).dtype == np.float64
        advance(block.stop - block.start)

    with jax.enable_x64(True):
        share(work, 11, 2, told.append)
    assert (seen == 1).all() and sum(told) == 11
    assert len(threads) == n_cores


def test_an_error_ends_the_others(n_cores):
    """Within their next word, not when they are done."""
    worked = []

    def work(block, advance):
        if block.start == 0:
            raise FloatingPointError("first")
        for _ in range(1000):
            time.sleep(0.01)
            advance(1)
        worked.append(block)

    with pytest.raises(FloatingPointError, match="first"):
        share(work, 50, 1, lambda finished: None)
    time.sleep(0.1)
    assert not worked and not any("widefield networks" in thread.name for thread in threading.enumerate())


def test_threads_of_blas_are_given_back():
    before, inside = cores.cores(), []
    share(lambda block, advance: inside.append(cores.cores()), 2, 1, lambda finished: None)
    assert set(inside) == {1} and cores.cores() == before
