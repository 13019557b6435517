"""Bad input of every public callable, argument by argument: refused with its name at once, or answered.

The arguments are read from the signatures, so that a new function is covered the day it is born; it needs valid arguments
in `BASES` (or a row in the table of contracts). Each argument is replaced by each of `VALUES` in turn. What follows is a
ValueError, TypeError or MemoryError that names the argument, or, where the value may be meant, an answer (a `SolveError` is
one): never another exception, a warning, or NaN beside a success. `KNOWN` are the offenders that are not repaired yet; one
that is repaired must be taken out.
"""

import inspect
import re
import time
from functools import lru_cache

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import widefield as wf
from tests.contract_table import CONVERSIONS, ROWS, made
from tests.test_contracts import public
from widefield import gaussian
from widefield.answer.certificate import Check
from widefield.answer.solution import make_solution

TRACER = object()
VALUES = {
    "None": None,
    "text": "abc",
    "nan": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
    "complex": 1j,
    "object": np.array([object()]),
    "ragged": [[1.0, 2.0], [3.0]],
    "masked": np.ma.array([1.0, 2.0], mask=[True, False]),
    "empty": [],
    "deep": np.ones((1,) * 5),
    "long": np.ones(7),
    "True": True,
    "1e300": 1e300,
    "5e-324": 5e-324,
    "10**30": 10**30,
    "-1": -1,
    "tracer": TRACER,
}
NEVER = {"text", "nan", "complex", "object", "ragged", "masked", "tracer"}  # cannot be meant: an answer is an offense
TEXT = {("Activation", "name"), ("Activation", "source"), ("Solution.save", "path"), ("Solution.plot", "path")}
TEXT |= {("cache_compilations", "folder"), ("prior", "store"), ("sweep", "store")}
NOT_MADE_BY_USERS = {"Certificate", "Check", "Solution", "SolveError", "Status", "Transition"}
NAN_MEANS = {"criticality": {"vertex_limit"}, "depth_limit": {"correlation"}}  # a limit not fitted, a point that is not
SLOW = {("gaussian.expectation", "variance", "1e300"), ("gaussian.expectation", "variance_", "1e300")}

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 2))
KERNEL = X @ X.T + np.eye(3)


def answer(name, *front):
    fields = {"output": ((*front, "sample", "sample_"), RNG.normal(size=(*[4] * len(front), 3, 3)))}
    return make_solution(fields, wf.Certificate(name, {"residual": Check(0.0, 1e-10)}), wf.DNN(2), wf.Task(X))


ANSWER = answer("prior")
BASES = {
    "DNN": (wf.DNN, {"depth": 3}),
    "RNN": (wf.RNN, {"depth": 3}),
    "ResNet": (wf.ResNet, {"depth": 3}),
    "Network": (wf.Network, {"depth": 3, "activation": "relu"}),
    "Activation": (wf.Activation, {"function": lambda x: x}),
    "Task": (wf.Task, {"x": X, "y": np.ones(3), "x_test": X, "y_test": np.ones(3)}),
    "Teacher": (wf.Teacher, {}),
    "Training": (wf.Training, {"rate": 0.1, "steps": 3}),
    "Solution.save": (ANSWER.save, {}),
    "Solution.plot": (ANSWER.plot, {}),
    "load": (wf.load, {}),
    "cache_compilations": (wf.cache_compilations, {"folder": "compiled"}),
    "compare": (wf.compare, {"theory": ANSWER, "trial": answer("simulate.prior", "replicate")}),
    "alignment": (wf.alignment, {"kernel": KERNEL, "other": np.eye(3)}),
    "cka": (wf.cka, {"kernel": KERNEL, "other": np.diag([1.0, 2.0, 3.0])}),
    "mmd2": (wf.mmd2, {"samples": X, "other": X + 1}),
    "relative_error": (wf.relative_error, {"a": KERNEL, "b": np.eye(3)}),
    "zscore": (wf.zscore, {"theory": KERNEL, "samples": KERNEL + RNG.normal(size=(4, 3, 3))}),
    "tasks.gaussian": (wf.tasks.gaussian, {"n_samples": 3, "dimension": 2}),
    "tasks.rotation": (wf.tasks.rotation, {"n_samples": 3, "dimension": 2, "depth": 3, "angle": 0.3}),
    "tasks.digits": (wf.tasks.digits, {"n_train": 3, "n_test": 2}),
    "tasks.cifar10": (wf.tasks.cifar10, {"path": ".", "n_train": 3, "n_test": 2}),
    "gaussian.expectation": (gaussian.expectation, {"activation": "tanh", "variance": 1.0, "variance_": 2.0, "covariance": 0.5}),
    "gaussian.kernel_for": (gaussian.kernel_for, {"activation": wf.DNN(1, "tanh").activation, "largest": 4.0}),
}  # fmt: skip
NAMES = {function: name for name, function in public()}
for row in reversed(ROWS):  # the first row of a call is its base
    BASES[NAMES[row.call]] = (row.call, {**row.question, **row.options})
for name, conversion in CONVERSIONS.items():
    given = inspect.signature(conversion.func).bind(*conversion.args, **conversion.keywords).arguments
    BASES[name] = (conversion.func, given)

CACHE_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
KNOWN: dict[str, dict[str, str]] = {}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where files are written, with the images of two classes that `cifar10` reads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (tmp_path / name).write_bytes(bytes(3073) + b"\x01" + bytes(3072))
    settings = {name: getattr(jax.config, name) for name in CACHE_SETTINGS}
    yield
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_every_public_callable_has_valid_arguments():
    classes = {name for name in wf.__all__ if inspect.isclass(getattr(wf, name))} - NOT_MADE_BY_USERS
    functions = {name for name, _ in public()} | {"gaussian.expectation", "gaussian.kernel_for"}
    methods = {f"Solution.{name}" for name in ("save", "plot")}
    assert set(BASES) == classes | functions | methods


@lru_cache
def base_of(name):
    return {key: made(value) for key, value in BASES[name][1].items()}


def test_the_valid_arguments_are_valid():
    """Nouns and plain functions; rows of contracts are asked elsewhere."""
    contracts = {NAMES[row.call] for row in ROWS}
    for name, (call, _) in BASES.items():
        if name not in contracts | {"load", "Solution.save"}:
            call(**base_of(name))


def nan_fields(result):
    """Fields of an answer that says success and has a NaN."""
    if not isinstance(result, wf.Solution) or result.status is not wf.Status.success:
        return set()
    return {str(n) for n, field in result.data.data_vars.items() if field.dtype.kind == "f" and field.isnull().any()}


def ask(call, given, argument, value):
    if value is not TRACER:
        return call(**{**given, argument: value})

    def traced(t):
        call(**{**given, argument: t})
        return t

    return jax.make_jaxpr(traced)(1.0)


def offense(name, argument, label):
    """What is wrong with the way the value is taken, in words; None where nothing is."""
    call, given = BASES[name][0], base_of(name)
    default = inspect.signature(call).parameters[argument].default
    switch = argument == "progress" or isinstance(default, bool)
    meant = (label not in NEVER or (label == "text" and (name, argument) in TEXT)) and (label != "True" or switch)
    try:
        result = ask(call, given, argument, VALUES[label])
    except wf.SolveError:
        return None
    except (ValueError, TypeError, MemoryError) as error:
        named = re.search(rf"`[^`]*\b{re.escape(argument)}\b", str(error))
        return None if named else f"{type(error).__name__} without its name: {str(error)[:100]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    if not meant:
        return "accepted"
    unknown = nan_fields(result) - NAN_MEANS.get(name, set())
    return f"NaN in {unknown} beside success" if unknown else None


@pytest.mark.parametrize("name", sorted(BASES))
def test_bad_input_is_refused_by_name(name, record_property):
    found, words, longest = {}, [], (0.0, "")
    for argument in inspect.signature(BASES[name][0]).parameters:
        for label in VALUES:
            if (name, argument, label) in SLOW:
                continue
            began = time.process_time()
            wrong = offense(name, argument, label)
            longest = max(longest, (time.process_time() - began, f"{argument}={label}"))
            if wrong is not None:
                found[argument] = f"{found[argument]} {label}" if argument in found else label
                words.append(f"{name}({argument}={label}): {wrong}")
    record_property("longest", longest)
    known = KNOWN.get(name, {})
    fixed = {argument: labels for argument, labels in known.items() if found.get(argument) != labels}
    assert found == known, "\n".join([*words, f"no longer so, to be taken out of KNOWN: {fixed}" if fixed else ""])
