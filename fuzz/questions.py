"""Random questions as plain data, so that a failure can be made smaller and printed as a script."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

import widefield as wf
from fuzz.quadrature import OWN, PLAIN

BOUNDED = ("erf", "sin", "tanh", "sigmoid", "np.clip(z, -1, 1)")  # finite networks stay close to their limit


@dataclass(frozen=True)
class Question:
    """``network`` has kind, depth, activation and keywords; ``training``, ``teacher`` keywords; ``call`` the options."""

    network: dict[str, Any]
    x: list = field(default_factory=list)
    y: list | None = None
    x_test: list | None = None
    supervised: tuple[int, ...] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    teacher: dict[str, Any] = field(default_factory=dict)
    call: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # of networks and of what is looked at: its number among the judge's questions

    @property
    def net(self) -> wf.Network:
        words = dict(self.network)
        kind, depth, name = (words.pop(key) for key in ("kind", "depth", "activation"))
        own = lambda z: eval(name, {"np": jnp, "z": z})  # noqa: E731
        activation = wf.Activation(own, breaks=OWN[name], name="own") if name in OWN else name
        return getattr(wf, kind)(depth, activation, **words)

    @property
    def task(self) -> wf.Task:
        y, x_test = (None if part is None else np.array(part) for part in (self.y, self.x_test))
        return wf.Task(np.array(self.x), y, self.supervised, x_test=x_test)

    @property
    def steps(self) -> wf.Training:
        return wf.Training(**self.training)

    @property
    def data(self) -> wf.Teacher:
        return wf.Teacher(**self.teacher)


def chance(rng: Generator, p: float) -> bool:
    return bool(rng.random() < p)


def pick(rng: Generator, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def spread(rng: Generator, low: float, high: float) -> float:
    """Evenly in the logarithm, short in print."""
    return float(f"{np.exp(rng.uniform(np.log(low), np.log(high))):.3g}")


def network(rng: Generator, depths: tuple, activations: Any = (*PLAIN, *OWN), largest: float = 2.5) -> dict[str, Any]:
    """Deep or recurrent, variances of every size, every mask."""
    words: dict[str, Any] = {"kind": pick(rng, "DNN", "RNN"), "depth": pick(rng, *depths)}
    words |= {"activation": pick(rng, *activations), "weight_variance": spread(rng, 0.3, largest)}
    names = [name for name in ("input_variance", "readout_variance", "bias_variance") if chance(rng, 0.35)]
    masks = [name for name in ("biases", "inputs") if chance(rng, 0.3)]
    return words | {n: spread(rng, 0.02, 2) for n in names} | {m: pick(rng, "tied", "untied") for m in masks}


def inputs(rng: Generator, n: int, depth: int = 1, *, plain: bool = False) -> list:
    """Rows that may be equal, opposite, zero, collinear, tiny or huge; sometimes sequences."""
    x = rng.normal(size=(n, rng.integers(1, 6))).round(2)
    trouble = "none" if plain else pick(rng, "none", "equal", "opposite", "zero", "collinear", "tiny", "huge")
    if trouble in ("equal", "opposite"):
        x[-1] = x[0] if trouble == "equal" else -x[0]
    elif trouble == "zero":
        x[rng.integers(n)] = 0
    elif trouble == "collinear":
        x = np.outer(rng.normal(size=n).round(2), x[0])
    x = x * {"tiny": 1e-5, "huge": 30.0}.get(trouble, 1.0)
    if depth > 1 and not plain and chance(rng, 0.25):
        x = np.stack([x, *(rng.normal(size=x.shape).round(2) for _ in range(rng.integers(1, depth)))], axis=1)
    return x.tolist()


def labels(rng: Generator, n: int, size: float = 1.0) -> list:
    return (size * rng.choice([-1.0, 1.0], n) * rng.uniform(0.5, 1.5, n)).round(3).tolist()


def supervised(rng: Generator, q: Question) -> Question:
    """The same question with several outputs or, where it is recurrent, labels at several states."""
    n, depth, y = len(q.x), q.network["depth"], np.array(q.y)
    outputs = int(rng.integers(1, 4))
    if q.network["kind"] == "RNN" and depth > 1 and chance(rng, 0.6):
        states = tuple(sorted(int(s) for s in rng.choice(depth, int(rng.integers(2, depth + 1)), replace=False)))
        y = y[:, None, None] * rng.choice([-1.0, 1.0, 0.5], (n, len(states), outputs))
        return replace(q, y=y.round(3).tolist(), supervised=states)
    return replace(q, y=(y[:, None] * rng.choice([-1.0, 1.0, 0.5], (n, max(2, outputs)))).round(3).tolist())


def training(rng: Generator, n: int, depth: int, protocols: bool = True) -> dict[str, Any]:
    """Descent at a rate that is stable at variances of order one, with any of the protocols."""
    rate, steps = spread(rng, 0.03, 0.4) / (n * (depth + 1)), pick(rng, 1, 2, 5, 9)
    some = {"rate": (rate * rng.uniform(0.3, 1.0, steps)).round(5).tolist(), "weight_decay": spread(rng, 0.05, 1.0)}
    some |= {"temperature": spread(rng, 0.01, 0.3), "loss": "logistic", "momentum_time": rate * spread(rng, 1.5, 8)}
    some |= {"initial_scale": spread(rng, 0.7, 1.4), "flow": True}
    words = {name: value for name, value in some.items() if protocols and chance(rng, 0.2)}
    return {"rate": rate, "steps": steps, "richness": spread(rng, 0.05, 3.0)} | words


def teacher(rng: Generator) -> dict[str, Any]:
    """Repeated data, fresh batches or the population, with or without noise."""
    words = pick(rng, {"data_ratio": pick(rng, 0.25, 0.5, 1.0, 2.0)}, {"batch_ratio": pick(rng, 0.25, 1.0, 2.0)}, {})
    return words | ({"label_noise": spread(rng, 0.05, 1.0)} if chance(rng, 0.5) else {})


def varied(rng: Generator, q: Question) -> Question:
    """The same shapes, words and degeneracies with other numbers, all of them smaller in size: nothing new is compiled."""
    x = rotated(rng, q.x, q.x_test)
    y = None if q.y is None else (np.array(q.y) * rng.uniform(0.5, 1.0) * pick(rng, 1, -1)).round(3).tolist()
    words = {name: smaller(rng, getattr(q, name)) for name in ("network", "training", "teacher", "call")}
    return replace(q, x=x[0], x_test=x[1], y=y, **words)


def rotated(rng: Generator, *parts: list | None) -> list[Any]:
    """Inputs turned and shrunk together: what was equal, opposite, collinear or zero stays so."""
    dimension = next((np.shape(part)[-1] for part in parts if part), 1)
    turn = rng.uniform(0.6, 1.0) * np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    return [(np.array(part) @ turn).tolist() if part else part for part in parts]


def smaller(rng: Generator, words: dict[str, Any]) -> dict[str, Any]:
    """Every positive real number of a question's keywords at 0.6 to 1 of itself; lists keep their proportions."""
    factor = {name: rng.uniform(0.6, 1.0) for name in words}

    def scaled(value: Any, by: float) -> Any:
        if isinstance(value, list):
            return [scaled(part, by) for part in value]
        return float(f"{by * value:.4g}") if isinstance(value, float) and np.isfinite(value) else value

    return {name: scaled(value, factor[name]) for name, value in words.items()}
