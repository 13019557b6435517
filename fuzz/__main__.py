"""``python -m fuzz``: ask until the time is over, count by judge, print every failure as a script that fails alone."""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuzz.judges import TABLE
from fuzz.questions import Question, varied
from fuzz.verdicts import VERDICTS, Judge, kind, outcome, script, shrink

VARIANTS = 8  # questions of one shape: most of the time of a first one goes into its compilation
ROUND = 20 * VARIANTS  # questions, after which compiled functions are dropped: a process has room for some thousands


def draw(judge: Judge, seed: int, i: int) -> Question:
    """The i-th question of a judge depends on ``seed``, the judge's name and i alone; some in a row share their shapes."""
    shape, variant = divmod(i, VARIANTS)
    question = judge.draw(np.random.default_rng([seed, *judge.name.encode(), shape]))
    rng = np.random.default_rng([seed, *judge.name.encode(), shape, variant])
    return replace(varied(rng, question) if variant else question, seed=i)


def replay(name: str, question: Question | tuple[int, int]) -> None:
    """Ask one question again: itself, or its seed and number."""
    judge = next(judge for judge in TABLE if judge.name == name)
    verdict, words = outcome(judge, question if isinstance(question, Question) else draw(judge, *question))
    print(f"{name}: {verdict}. {words}")
    raise SystemExit(verdict == "defect")


def attack(
    seed: int,
    hours: float,
    *,
    questions: float = np.inf,
    only: str = "",
    shrinking: float = 60.0,
    out: Path | None = None,
    core: int | None = None,
) -> list[dict[str, Any]]:
    """What came of every question. All judges get the same time of the processor; every line is in ``out`` at once."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    judges = {judge.name: judge for judge in TABLE if only in judge.name}
    spent, asked, lines, seen = dict.fromkeys(judges, 0.0), Counter[str](), list[dict[str, Any]](), set()
    stop = time.monotonic() + 3600 * hours

    def note(line: dict[str, Any]) -> None:
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")

    with suppress(KeyboardInterrupt):  # the table comes all the same
        while time.monotonic() < stop and len(lines) < questions:
            name = min(judges, key=lambda name: spent[name])
            judge, line = judges[name], {"seed": seed, "judge": name, "question": asked[name]}
            question, start = draw(judge, seed, asked[name]), time.process_time()
            note(line | {"verdict": "asked"})
            verdict, words = outcome(judge, question)
            seconds = time.process_time() - start
            lines.append(line | {"verdict": verdict, "seconds": round(seconds, 3), "words": words[:400]})
            note(lines[-1])
            spent[name] += seconds
            asked[name] += 1
            if len(lines) % ROUND == 0:
                jax.clear_caches()
            if verdict == "defect":
                print(f"\nDEFECT  {name}, question {asked[name] - 1} of seed {seed}: {words[:400]}", flush=True)
                if (name, kind(words)) not in seen:
                    seen.add((name, kind(words)))
                    question, words = shrink(judge, question, words, shrinking)
                    print(f"shrunk to: {words[:400]}\n{script(judge, question)}", flush=True)
    return lines


def one_thread() -> None:
    """For processes that are started after this; on processors, whatever else the machine has. They share what they compile."""
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir(), "widefield-fuzz-compiled")))
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def together(jobs: int, seed: int, hours: float, words: dict[str, Any]) -> None:
    """As many processes, each with one thread, a core and a seed of its own; one that dies takes no other with it."""
    one_thread()
    from fuzz.__main__ import attack as work  # by its name in a module, which other processes can import

    cores, spawn = sorted(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=work, args=(seed + k, hours), kwargs=words | {"core": cores[k % len(cores)]})
        for k in range(jobs)
    ]
    with suppress(KeyboardInterrupt):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for k, worker in enumerate(workers):
        if worker.exitcode:
            print(
                f"the process of seed {seed + k} ended with code {worker.exitcode}; its last question is among the asked"
            )


def table(lines: list[dict[str, Any]]) -> str:
    """Counts by judge, hours of the processor, and the commonest refusals; of a question the last line counts."""
    last = {(line["seed"], line["judge"], line["question"]): line for line in lines}.values()
    counts = Counter((line["judge"], line["verdict"]) for line in last)
    names = [judge.name for judge in TABLE if any(judge.name == name for name, _ in counts)]
    verdicts, width = (*VERDICTS, "asked"), max(map(len, names), default=5)
    hours = {name: sum(line.get("seconds", 0.0) for line in last if line["judge"] == name) / 3600 for name in names}
    rows = [
        f"{name:{width}}" + "".join(f"{counts[name, v]:9d}" for v in verdicts) + f"{hours[name]:9.3f}" for name in names
    ]
    refusals = Counter(f"{line['judge']}: {line['words'][:110]}" for line in last if line["verdict"] == "refused")
    return "\n".join(
        [
            f"{len(last)} questions, {sum(hours.values()):.2f} hours of the processor",
            f"{'judge':{width}}" + "".join(f"{v:>9}" for v in verdicts) + f"{'hours':>9}",
            *rows,
            *(f"{count:5d} × {words}" for words, count in refusals.most_common(25)),
        ]
    )


def read(paths: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=0.05)
    parser.add_argument("--jobs", type=int, default=1, help="processes; each has a seed of its own, from --seed on")
    parser.add_argument("--questions", type=int, default=10**9, help="stop after as many, in each process")
    parser.add_argument("--judge", default="", help="only judges with this in their name")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds of the processor for making a defect small")
    parser.add_argument("--out", type=Path, help="a file of JSON lines, to which every verdict is appended at once")
    parser.add_argument("--count", type=Path, nargs="+", help="ask nothing, count such files together")
    options = parser.parse_args()
    if options.count:
        return print(table(read(options.count)))
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder, "verdicts.jsonl")
        before = len(read([out])) if out.exists() else 0
        words = {"questions": options.questions, "only": options.judge, "out": out, "shrinking": options.shrink}
        if options.jobs == 1:
            attack(options.seed, options.hours, **words)
        else:
            together(options.jobs, options.seed, options.hours, words)
        lines = read([out])[before:]
    print(f"\n{table(lines)}")
    raise SystemExit(any(line["verdict"] == "defect" for line in lines))


if __name__ == "__main__":
    main()
