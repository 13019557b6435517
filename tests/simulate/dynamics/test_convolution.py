"""Convolutional networks against loops over pixels and against dense networks."""

import numpy as np
import pytest

from widefield.simulate.dynamics import convolution


def plain(weights, x):
    """Outputs times the richness of one image (row, column, color), pixel by pixel."""
    *filters, readout = (np.asarray(w, float) for w in weights)
    for k, W in enumerate(filters):
        padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        h = np.zeros((*x.shape[:2], W.shape[-1]))
        for i, j in np.ndindex(*x.shape[:2]):
            h[i, j] = np.einsum("abc,abcd->d", padded[i : i + 3, j : j + 3], W)
        x = np.maximum(np.sqrt((2 if k else 1) / (9 * W.shape[2])) * h, 0)
    return x.mean(axis=(0, 1)) @ readout / len(readout)


@pytest.fixture
def case():
    rng = np.random.default_rng(3)
    return convolution.initial(rng, 2, 5, 1), rng.standard_normal((4, 3, 3, 1)), rng.choice([-1.0, 1.0], 4)


def test_outputs_are_those_of_loops_over_pixels(case):
    weights, x, _ = case
    curves = convolution.features(weights, x.astype(np.float32))[1]
    assert np.asarray(curves) == pytest.approx([plain(weights, one) for one in x], rel=1e-4, abs=1e-6)


def test_an_update_descends_with_the_raw_rate(case):
    """θ ← θ − ηγ0²N ∂L/∂θ, the slope by differences of the plain network."""
    weights, x, y = case
    richness, rate, width = 2.0, 0.3, 5
    before = [np.array(w, float) for w in weights]
    first = np.array([plain(before, one) for one in x])
    moved = convolution.update(
        [w + 0 for w in weights], x.astype(np.float32), y.astype(np.float32), first.astype(np.float32), richness, rate
    )

    def loss(parts):
        f = (np.array([plain(parts, one) for one in x]) - first) / richness
        return 0.5 * np.mean((f - y) ** 2)

    for layer, index in ((0, (1, 1, 0, 2)), (1, (0, 2, 3, 1)), (2, (4,))):
        shifted = [[w.copy() for w in before] for _ in range(2)]
        for sign, parts in zip((1, -1), shifted, strict=True):
            parts[layer][index] += sign * 1e-5
        slope = (loss(shifted[0]) - loss(shifted[1])) / 2e-5
        change = float(moved[layer][index]) - before[layer][index]
        assert change == pytest.approx(-rate * richness**2 * width * slope, rel=2e-3, abs=2e-6)


def test_outputs_start_at_zero(case):
    _, x, y = case
    curves = convolution.train(
        x, y, x, y, width=6, depth=2, richness=1.0, rate=0.2, batch=4, at=np.array([0, 5]), replicates=2, seed=1
    )
    assert curves["test_loss"].shape == (2, 2)
    assert curves["test_loss"][:, 0] == pytest.approx(0.5, abs=1e-6)
    assert (curves["test_loss"][:, 1] < 0.5).all()
