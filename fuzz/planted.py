"""``python -m fuzz.planted``: small errors put into the library on purpose, and in how many questions a judge sees them."""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from typing import Any

import numpy as np

import widefield as wf
from fuzz.__main__ import draw, one_thread
from fuzz.judges import TABLE
from fuzz.verdicts import outcome


def field(name: str, factor: float) -> Callable[..., Any]:
    """An answer with one field off by a factor."""

    def spoiled(call: Callable[..., Any], *nouns: Any, **options: Any) -> Any:
        found = call(*nouns, **options)
        if name in found.data:
            found.data[name][...] *= factor
        return found

    return spoiled


def training(**factors: float) -> Callable[..., Any]:
    """The answer to another training: every word that is used is off by its factor."""

    def spoiled(call: Callable[..., Any], *nouns: Any, **options: Any) -> Any:
        right = {name: getattr(nouns[2], name) for name in factors}
        wrong = {k: np.multiply(v, factors[k]).tolist() for k, v in right.items() if v is not None}
        return call(*nouns[:2], replace(nouns[2], **wrong), *nouns[3:], **options)

    spoiled.words = set(factors)  # a question without them shows nothing
    return spoiled


def network(name: str, factor: float) -> Callable[..., Any]:
    """The answer to another network."""

    def spoiled(call: Callable[..., Any], *nouns: Any, **options: Any) -> Any:
        value = getattr(nouns[0], name)
        return call(replace(nouns[0], **{name: np.multiply(value, factor).tolist()}), *nouns[1:], **options)

    return spoiled


def option(name: str, factor: float) -> Callable[..., Any]:
    """The answer at another value of an option."""

    def spoiled(call: Callable[..., Any], *nouns: Any, **options: Any) -> Any:
        return call(*nouns, **options | {name: options[name] * factor})

    return spoiled


PLANTED: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("prior, by quadrature", "features 10⁻⁶ too large", "prior", field("feature", 1 + 1e-6)),
    ("prior, dense regression", "predictions 10⁻⁵ too large", "prior", field("test_prediction", 1 + 1e-5)),
    ("prior, networks", "weight variance 10 % too large", "prior", network("weight_variance", 1.1)),
    ("finite width, closed forms", "vertex 10⁻⁵ too large", "finite_width", field("connected", 1 + 1e-5)),
    ("finite width, networks", "variance 20 % too large", "finite_width", field("kernel_variance", 1.2)),
    ("posterior, by hand", "temperature 0.1 % too high", "posterior", option("temperature", 1.001)),
    ("posterior, its prediction", "predictions 10⁻⁴ too large", "posterior", field("prediction", 1 + 1e-4)),
    ("transition, untied", "temperature 0.1 % too high", "posterior", option("temperature", 1.001)),
    ("transition, closed curve", "temperature 0.1 % too high", "transition", option("temperature", 1.001)),
    ("landscape", "field 1 % too large", "landscape", field("field", 1.01)),
    ("dynamics, lazy limit", "rate 5 % too large", "dynamics", training(rate=1.05)),
    ("dynamics, differential equation", "richness 1 % too large", "dynamics", training(richness=1.01)),
    ("dynamics, networks", "rate 10 % too large", "dynamics", training(rate=1.1)),
    ("dynamics, networks", "rate 20 % too large", "dynamics", training(rate=1.2)),
    ("dynamics, networks", "richness 30 % too large", "dynamics", training(richness=1.3)),
    ("dynamics, noisy networks", "decay 20 % too large", "dynamics", training(weight_decay=1.2)),
    ("dynamics, noisy networks", "noise 30 % too strong", "dynamics", training(temperature=1.3)),
    ("dynamics, noisy networks", "momentum 30 % too long", "dynamics", training(momentum_time=1.3)),
    ("proportional, networks", "rate 10 % too large", "proportional", training(rate=1.1)),
)


@contextmanager
def planted(name: str, spoil: Callable[..., Any]) -> Iterator[None]:
    """The library with an error in one call."""
    right = getattr(wf, name)
    setattr(wf, name, lambda *nouns, **options: spoil(right, *nouns, **options))
    try:
        yield
    finally:
        setattr(wf, name, right)


def measure(row: int, seed: int, questions: int) -> dict[str, Any]:
    """Of the questions that the library answers rightly, how many the judge calls a defect."""
    name, what, call, spoil = PLANTED[row]
    judge, seen, asked = next(judge for judge in TABLE if judge.name == name), 0, 0
    some = (draw(judge, seed, i) for i in count())
    for question in islice((q for q in some if getattr(spoil, "words", set()) <= set(q.training)), questions):
        with planted(call, spoil):
            verdict, _ = outcome(judge, question)
        seen, asked = seen + (verdict == "defect"), asked + (verdict in ("defect", "agreed"))
    return {"judge": name, "error": what, "seen": seen, "of": asked}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.planted", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", type=int, default=6, help="of each row")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--judge", default="", help="only judges with this in their name")
    options = parser.parse_args()
    rows = [row for row, (name, *_) in enumerate(PLANTED) if options.judge in name]
    one_thread()
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        asked = [pool.submit(measure, row, options.seed, options.questions) for row in rows]
        for done in as_completed(asked):
            print(json.dumps(done.result(), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
