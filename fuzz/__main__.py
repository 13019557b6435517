"""``python -m fuzz``: ask until the time is over, count by judge, print every failure as a script that fails alone."""

import argparse
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import jax
import numpy as np

from fuzz.judges import TABLE
from fuzz.questions import Question
from fuzz.verdicts import VERDICTS, kind, outcome, script, shrink


def replay(name: str, question: Question) -> None:
    """Ask one question again."""
    verdict, words = outcome(next(judge for judge in TABLE if judge.name == name), question)
    print(f"{name}: {verdict}. {words}")
    raise SystemExit(verdict == "defect")


def attack(
    seed: int, hours: float, *, questions: float = np.inf, only: str = "", shrinking: float = 60.0
) -> Counter[tuple[str, str]]:
    """Rounds over the judges; the i-th question of a judge depends on ``seed``, the judge's name and i alone."""
    judges = [judge for judge in TABLE if only in judge.name]
    counts, refusals, seen = Counter[tuple[str, str]](), Counter[str](), set()
    stop = time.monotonic() + 3600 * hours
    with suppress(KeyboardInterrupt):  # the table comes all the same
        while time.monotonic() < stop and counts.total() < questions:
            i, judge = counts.total() // len(judges), judges[counts.total() % len(judges)]
            question = replace(judge.draw(np.random.default_rng([seed, *judge.name.encode(), i])), seed=i)
            verdict, words = outcome(judge, question)
            counts[judge.name, verdict] += 1
            if judge is judges[-1]:
                jax.clear_caches()  # a process has room for some thousand compiled functions only
            if verdict == "refused":
                refusals[f"{judge.name}: {words[:110]}"] += 1
            if verdict == "defect":
                print(f"\nDEFECT  {judge.name}, question {i} of seed {seed}: {words[:400]}", flush=True)
                if (judge.name, kind(words)) not in seen:
                    seen.add((judge.name, kind(words)))
                    question, words = shrink(judge, question, words, shrinking)
                    print(f"shrunk to: {words[:400]}\n{script(judge, question)}", flush=True)
    width = max(len(judge.name) for judge in judges)
    print(f"\nseed {seed}: {counts.total()} questions\n{'judge':{width}}" + "".join(f"{v:>9}" for v in VERDICTS))
    for judge in judges:
        print(f"{judge.name:{width}}" + "".join(f"{counts[judge.name, v]:9d}" for v in VERDICTS))
    for words, count in refusals.most_common(25):
        print(f"{count:5d} × {words}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=0.05)
    parser.add_argument("--questions", type=int, default=10**9, help="stop after as many")
    parser.add_argument("--judge", default="", help="only judges with this in their name")
    options = parser.parse_args()
    counts = attack(options.seed, options.hours, questions=options.questions, only=options.judge)
    raise SystemExit(any(verdict == "defect" for _, verdict in counts))


if __name__ == "__main__":
    main()
