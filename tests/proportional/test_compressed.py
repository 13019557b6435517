"""The compressed march against the dense one."""

import jax
import numpy as np
import pytest

import widefield as wf
from tests.proportional.words import ask, posed
from widefield.theories.proportional.march import compressed, march
from widefield.theories.proportional.march.compressed import compressed_segments, factors, marched
from widefield.theories.proportional.verification import residual

STEPS = 60
K = np.arange(1.0, 61)
RANDOM = 0.01 * np.random.default_rng(0).uniform(0.2, 1.5, 698)
UNSAID = {"richness": 0.8, "rate": 0.03}
NOISY = {"width_ratio": 0.7, "label_noise": 0.2}
CASES = {
    "gd": NOISY | {"data_ratio": 1.5},
    "sgd, channels": NOISY | {"batch_ratio": 1.5, "target_overlap": [[1.0, 0.3], [0.3, 0.5]]},
    "structured": {"spectrum": (K**-1.5, K**-2.2), "centered": True},
}
REGIMES = {
    "rich": {"richness": 3.0, "rate": 0.004, "data_ratio": 2.0},
    "edge of stability": {"richness": 1.0, "rate": 0.06, "data_ratio": 2.0},
    "few data": {"rate": 0.02, "data_ratio": 0.5},
    "few data, nothing left": {"rate": 0.02, "data_ratio": 0.5, "label_noise": 0.0},
    "centered population": {"rate": 0.03, "centered": True, "label_noise": 0.0},
    "lazy": {"richness": 0.0, "centered": True, "rate": 0.02, "data_ratio": 2.0},
    "any rates": {"rate": RANDOM, "data_ratio": 2.0},
    "sgd": {"rate": 0.01, "batch_ratio": 1.0},
    "sgd, oscillating": {"rate": 0.05, "batch_ratio": 4.0},
}


def problem(steps, depth=2, **physics):
    return posed(wf.DNN(depth, "linear"), steps=steps, **UNSAID | physics)


@pytest.fixture
def small_blocks(monkeypatch):
    """Compression from 32 rows on, so that few steps see all of it."""
    for name, value in {"LARGE": 32, "BLOCK": 16, "RANK": 12}.items():
        monkeypatch.setattr(compressed, name, value)


def assert_is_dense(one, rtol):
    """Every matrix of both marches, relative to its largest entry."""
    with jax.enable_x64(True):
        *_, (_, state) = compressed_segments(one.parameters, one.shape)
        wanted = march(one.parameters, one.shape)
        assert residual(one, state, one.n_rows) < 1e-12 and residual(one, wanted, one.n_rows) < 1e-13
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
            if b.size:
                np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(np.abs(b).max(), 1e-300))


@pytest.mark.parametrize("name", ["gd", pytest.param("sgd, channels", marks=pytest.mark.full), "structured"])
def test_the_compressed_march_is_the_dense_one(name, small_blocks):
    assert_is_dense(problem(STEPS, depth=1 if name == "structured" else 2, **CASES[name]), 1e-12)


@pytest.mark.full
def test_buffers_and_ranks_that_grow_change_nothing(small_blocks, monkeypatch):
    monkeypatch.setattr(compressed, "RANK", 2)
    assert_is_dense(problem(150, **CASES["gd"]), 1e-12)


@pytest.mark.full
@pytest.mark.parametrize("name", REGIMES)
def test_the_compressed_march_is_the_dense_one_in_every_regime(name):
    assert_is_dense(problem(698, depth=4, **NOISY | REGIMES[name]), 1e-10)


def test_long_runs_are_compressed(monkeypatch):
    called = []

    def start(one):
        with jax.enable_x64(True):
            marched(one.parameters, one.shape)

    monkeypatch.setattr(compressed, "compressed_segments", lambda parameters, shape: called.append(shape.n_steps))
    monkeypatch.setattr(compressed, "segments", lambda parameters, shape: None)
    for steps, physics in ((500, {}), (700, {}), (700, CASES["structured"]), (700, CASES["structured"] | {"batch": 9})):
        start(problem(steps, **physics))
    start(posed(wf.ResNet(3, "linear", 0.6), steps=700, **UNSAID))
    assert called == [702, 702]


def test_the_certificate_sees_what_compression_loses(small_blocks, monkeypatch):
    solve = lambda: ask(wf.proportional, wf.DNN(2, "linear"), steps=STEPS, **UNSAID, **CASES["gd"], throw=False)  # noqa: E731
    assert solve().status is wf.Status.success
    for option, value in {"RANK": 1, "MORE": 1, "ROUNDINGS": 1e-5 / np.finfo(float).eps}.items():
        monkeypatch.setattr(compressed, option, value)
    coarse = solve()
    assert coarse.status is wf.Status.inaccurate and 1e-8 < coarse.residual < 1e-4


def test_divergence_of_long_runs(small_blocks, monkeypatch):
    """Same step as in the dense march, though the compressed one stops when its numbers end."""
    words = UNSAID | CASES["gd"] | {"steps": STEPS, "rate": 0.6, "quantities": ("test_loss",), "throw": False}
    short = ask(wf.proportional, wf.DNN(2, "linear"), **words)
    monkeypatch.setattr(compressed, "LARGE", 512)
    dense = ask(wf.proportional, wf.DNN(2, "linear"), **words)
    assert short.status is dense.status is wf.Status.diverged
    np.testing.assert_array_equal(np.isfinite(short.test_loss), np.isfinite(dense.test_loss))


def test_factors_take_the_rank_that_they_need():
    t = np.linspace(0, 1, 64)
    smooth = 1 / (1 + t[:, None] + t)
    rough = np.random.default_rng(0).standard_normal((64, 64))
    for block, tolerance, largest in ((smooth, 1e-12, 16), (smooth + 1e-9 * rough, 1e-7, 16), (rough, 1e-12, 64)):
        left, right = factors(block, tolerance, 4)
        assert np.abs(left @ right - block).max() <= tolerance and left.shape[1] <= largest
    assert factors(rough, 1e-12, 4)[0].shape == (64, 64)
    for empty in (np.zeros((64, 64)), np.zeros((64, 0))):
        left, right = factors(empty, 0.0, 4)
        assert left.shape == (64, 4) and not (left @ right).any()
