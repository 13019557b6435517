"""Theory against trained networks: extrapolated in 1/D, and with wrong theories that must be seen."""

import numpy as np
import pytest

import widefield as wf
from tests.proportional import oracle
from tests.proportional.words import ask
from tests.simulate.students import agrees

STEPS = 8
ROWS = [1, 2, 4, 8]
RATE = 0.06
COMMON = {"richness": 0.8, "rate": RATE, "steps": STEPS, "label_noise": 0.2, "width_ratio": 0.7}

CASES = {
    "gd": (wf.DNN(2, "linear"), {"data_ratio": 1.5}),
    "sgd": (wf.DNN(2, "linear"), {"batch_ratio": 1.5}),
    "centered": (wf.DNN(2, "linear"), {"data_ratio": 1.5, "centered": True}),
    "widths": (wf.DNN(3, "linear", widths=(0.5, 1.0, 2.0)), {"data_ratio": 1.5}),
    "channels": (wf.DNN(2, "linear"), {"data_ratio": 1.5, "target_overlap": [[1.0, 0.3], [0.3, 0.5]]}),
    "residual": (wf.ResNet(3, "linear", 0.6), {"data_ratio": 1.5}),
}


def trained(network, physics, dimension, replicates, seed):
    """Test and train losses (replicate, 2·rows) of networks."""
    words = COMMON | physics | {"dimension": dimension, "replicates": replicates, "seed": seed, "progress": False}
    trial = ask(wf.simulate.proportional, network, **words)
    return rows(trial.test_loss.values, trial.train_loss.values)


def rows(test, train):
    """The rows that are compared, (…, number)."""
    test, train = (np.moveaxis(v, -1, 0) if v.ndim == 3 else v[None] for v in (test, train))
    return np.concatenate([v[..., ROWS] for v in (*test, *train)], axis=-1)


def predicted(solution):
    return rows(solution.test_loss.values[None], solution.train_loss.values[None])[0]


def extrapolated(network, physics, dimensions, replicates, seed):
    """2·large − small: the offset of order 1/D is gone."""
    small, large = (trained(network, physics, d, replicates, seed + i) for i, d in enumerate(dimensions))
    return 2 * large - small


@pytest.mark.parametrize("name", ["gd", "sgd", "residual"])
def test_theory_meets_trained_networks(name):
    network, physics = CASES[name]
    samples = extrapolated(network, physics, (60, 120), 300, seed=11)
    assert agrees(predicted(ask(wf.proportional, network, **COMMON | physics)), samples)
    wrong = COMMON | physics | {"width_ratio": 0.6}
    assert not agrees(predicted(ask(wf.proportional, network, **wrong)), samples), (
        "a width that is 15 % off must be seen"
    )


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_theory_meets_larger_networks(name):
    network, physics = CASES[name]
    samples = extrapolated(network, physics, (200, 400), 800, seed=23)
    assert agrees(predicted(ask(wf.proportional, network, **COMMON | physics)), samples)
    # without its initial function a network depends little on its width
    wrong = COMMON | physics | ({"rate": 1.1 * RATE} if name == "centered" else {"width_ratio": 0.665})
    assert not agrees(predicted(ask(wf.proportional, network, **wrong)), samples), (
        "a width 5 % or a rate 10 % off must be seen"
    )


@pytest.mark.parametrize(("mistake", "richness"), [("strict", 0.8), ("kernel", 2.0)])
def test_printed_equations_are_rejected(mistake, richness):
    """The literal "t' < t" of the responses, and ηγ0 C_g in the error (right at richness 1): finite networks decide."""
    network, physics = CASES["gd"][0], CASES["gd"][1] | {"richness": richness, "rate": 0.04}
    samples = extrapolated(network, physics, (60, 120), 300, seed=11)
    assert agrees(predicted(ask(wf.proportional, network, **COMMON | physics)), samples)
    literal = oracle.solve(
        steps=STEPS, depth=2, rate=0.04, richness=richness, width=0.7, data=1.5, noise=0.2, mistake=mistake
    )
    assert not agrees(np.concatenate([literal["test_loss"][ROWS, 0], literal["train_loss"][ROWS, 0]]), samples)


def test_the_error_falls_with_the_dimension():
    """Single networks scatter around the theory as 1/√D."""
    network, physics = CASES["gd"]
    theory = predicted(ask(wf.proportional, network, **COMMON | physics))
    spread = [np.std(trained(network, physics, d, 200, seed=d) / theory - 1, axis=0) for d in (50, 200)]
    ratio = spread[0][-1] / spread[1][-1]
    assert 1.6 < ratio < 2.5


def power_law():
    k = np.arange(1.0, 201)
    powers = k**-2.2
    return k**-1.5, powers / powers.sum()


@pytest.mark.full
def test_power_law_data():
    """The theory drops O(1/N, 1/B): extrapolate N = B = 64, 128."""
    network, physics = wf.DNN(2, "linear"), {"richness": 0.8, "rate": 0.15, "steps": STEPS, "spectrum": power_law()}
    small, large = (
        rows(*(getattr(trial, name).values for name in ("test_loss", "train_loss")))[..., :4]
        for trial in (
            ask(wf.simulate.proportional, network, width=n, batch=n, replicates=2400, seed=n, progress=False, **physics)
            for n in (64, 128)
        )
    )
    theory = lambda n: ask(wf.proportional, network, width=n, batch=n, **physics).test_loss.values[ROWS]  # noqa: E731
    # theory and networks both depend on N = B: the difference is what is extrapolated
    samples = 2 * (large - theory(128)) - (small - theory(64))
    assert agrees(np.zeros(4), samples)
    assert not agrees(np.zeros(4), samples + 0.03 * theory(128)), "3 % must be seen"


def test_bias_is_the_overlap_of_independent_networks():
    """Two runs share nothing but the target: their errors overlap in the bias."""
    rng = np.random.default_rng(5)

    def error(dimension):
        """v after four steps of one hidden layer, trained here."""
        n, p = round(0.7 * dimension), round(1.5 * dimension)
        X, W, w = rng.normal(size=(p, dimension)), rng.normal(size=(n, dimension)), rng.normal(size=n)
        noise, target, scale = np.sqrt(0.2) * rng.normal(size=p), np.ones(dimension), np.sqrt(dimension)
        for _ in range(4):
            v = target - scale / (n * 0.8) * W.T @ w
            h = scale / p * X.T @ (X @ v / scale + noise)
            w, W = w + RATE * 0.8 * W @ h / scale, W + RATE * 0.8 / scale * np.outer(w, h)
        return target - scale / (n * 0.8) * W.T @ w

    overlaps = {d: np.array([error(d) @ error(d) / d for _ in range(1200)]) for d in (40, 80)}
    theory = ask(wf.proportional, wf.DNN(1, "linear"), **COMMON | {"data_ratio": 1.5})
    samples = 2 * overlaps[80] - overlaps[40]
    assert agrees(theory.bias.values[4], samples[:, None])
    assert not agrees(theory.bias.values[4] + 0.2 * theory.width_variance.values[4], samples[:, None])
