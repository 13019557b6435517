"""What every public call promises, checked over the whole table: honest success, files, dtypes, tracers, memory, progress,
failure, selection; and the cores: jit = plain, vmap = loop, gradient = finite difference."""

import inspect
import re
import tracemalloc
import types
from dataclasses import fields
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import widefield as wf
from tests import contracts
from tests.contract_table import (
    CONVERSIONS,
    CORES,
    NO_ANSWER,
    NO_CORE,
    ROWS,
    Core,
    Later,
    answer_of,
    made,
    solution_of,
)  # fmt: skip

NOUNS = ("network", "task", "teacher", "training")
FREE = 12_500_000  # bytes of a machine with little memory; four fifths of them may be used
TRANSFORMS = (jax.jit, jax.grad, lambda f: lambda v: jax.vmap(f)(np.asarray([v])))


def over(rows):
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name.replace(" ", "-"))


def takes(option):
    return [row for row in ROWS if option in inspect.signature(row.call).parameters]


def case_of(case):
    if isinstance(case, str):
        pytest.skip(case)
    return case


def assert_same_noun(first, second):
    """Field by field: arrays, tuples of arrays, words and numbers."""
    assert type(first) is type(second)
    for f in fields(first):
        np.testing.assert_equal(getattr(first, f.name), getattr(second, f.name), err_msg=f.name)


def assert_same_answer(first, second):
    """The same numbers to the last bit, in the solution and around it."""
    assert type(first) is type(second)
    assert solution_of(first).data.identical(solution_of(second).data)
    if not isinstance(first, wf.Solution):
        for f in fields(first):
            if not isinstance(getattr(first, f.name), wf.Solution):
                np.testing.assert_equal(getattr(first, f.name), getattr(second, f.name), err_msg=f.name)


# Public calls.


@over(ROWS)
def test_success_is_earned_and_says_how(row):
    certificate = answer_of(row).certificate
    assert certificate.checks and all(check.met for check in certificate.checks.values())
    assert certificate.status is wf.Status.success and certificate.failure is None
    assert certificate.theory == row.certified_as and certificate.wall_time > 0
    assert certificate.versions["widefield"] == wf.__version__ and {"jax", "numpy"} <= set(certificate.versions)
    if "seed" in row.options:
        assert certificate.seed == row.options["seed"] or row.name == "simulate.extrapolate"


@over(ROWS)
def test_the_question_is_on_the_solution(row):
    solution = solution_of(answer_of(row))
    sources = [made(value) for value in row.question.values() if isinstance(value, Later)]
    asked = {name: getattr(sources[0], name) for name in NOUNS} if sources else row.question
    for name in NOUNS:
        if asked.get(name) is not None:
            assert_same_noun(getattr(solution, name), asked[name])


@over(ROWS)
def test_files_give_back_everything(row, tmp_path):
    solution = solution_of(answer_of(row))
    again = wf.load(solution.save(tmp_path / "answer.nc"))
    assert again.data.identical(solution.data) and again.certificate == solution.certificate
    for name in NOUNS:
        assert_same_noun(getattr(again, name), getattr(solution, name)) if getattr(solution, name) else None
    sources = {name: made(value) for name, value in row.question.items() if isinstance(value, Later)}
    loaded = {name: wf.load(source.save(tmp_path / f"{name}.nc")) for name, source in sources.items()}
    loaded |= {name: getattr(again, name) for name in row.question if name in NOUNS}
    assert_same_answer(row.ask(**loaded), answer_of(row))


@over(ROWS)
def test_arrays_are_numpy_doubles_whatever_the_flag(row):
    before = jax.config.jax_enable_x64
    for name, array in solution_of(answer_of(row)).data.data_vars.items():
        assert type(array.values) is np.ndarray, name
        assert array.dtype == np.float64 or array.dtype.kind not in "fc", name
    jax.config.update("jax_enable_x64", not before)
    try:
        other = row.ask()
        assert jax.config.jax_enable_x64 is not before
    finally:
        jax.config.update("jax_enable_x64", before)
    assert_same_answer(other, answer_of(row))


@over([row for row in ROWS if row.traced not in row.question])
def test_tracers_are_rejected_by_name(row):
    argument = row.traced.rpartition(".")[2]
    answer_of(row)  # solutions that it is made of are not traced
    for transform in TRANSFORMS:
        with pytest.raises(ValueError, match=rf"`{argument}(\[\d+\])?`.*[Tt]racer"):
            transform(row.with_value)(row.traced_value)


@over(ROWS)
def test_memory_is_refused_before_it_is_taken(row, monkeypatch):
    changes, words = case_of(row.large)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=FREE))
    for traced in (False, True):  # what is imported at the first call is not what the call takes
        if traced:
            tracemalloc.start()
        try:
            with pytest.raises(MemoryError, match=rf"(?s)(?=.*{words}).*\d (k|M|G|T)B.*may be used"):
                row.ask(**changes)
            assert not traced or tracemalloc.get_traced_memory()[1] < FREE / 6
        finally:
            tracemalloc.stop()


@over(takes("progress"))
def test_progress_is_shown_and_changes_nothing(row, capsys):
    shown = row.ask(progress=True)
    assert bool(re.search(r"\d+/\d+", capsys.readouterr().err)) is not bool(row.no_bar), "a bar that counts"
    assert_same_answer(shown, answer_of(row))
    row.ask(progress=False)
    assert capsys.readouterr().err == ""


@over(ROWS)
def test_failure_is_loud_and_partial_on_request(row):
    changes, status = case_of(row.fails)
    with pytest.raises(wf.SolveError) as raised:
        row.ask(**changes)
    partial = row.ask(**changes, throw=False)
    assert partial.certificate.status is status is not wf.Status.success
    assert status.name in str(raised.value) and status.value in str(raised.value)
    assert raised.value.solution.status is status
    assert raised.value.solution.data.identical(solution_of(partial).data)


@over(takes("quantities"))
def test_quantities_alone_are_those_together(row):
    everything = solution_of(answer_of(row)).data
    fields = [name for name in everything.data_vars if not name.endswith(("_stderr", "_error"))]
    for name in row.alone or fields:
        alone = row.ask(quantities=name).data
        assert set(alone.data_vars) - {f"{name}_stderr", f"{name}_error"} == {name}
        if everything[name].dtype.kind == "f":
            np.testing.assert_allclose(alone[name], everything[name], rtol=1e-12, atol=1e-14)
        else:
            assert alone[name].identical(everything[name])
    with pytest.raises(ValueError, match="`quantities` must be one of"):
        row.ask(quantities=(name, "nonsense"))


# What is public.


def public(module=wf, prefix=""):
    """Names and objects of a module and of the modules that it exports."""
    defined = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    for name in getattr(module, "__all__", None) or [name for name in defined if not name.startswith("_")]:
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            yield from public(thing, f"{name}.")
        elif inspect.isfunction(thing):
            yield f"{prefix}{name}", thing


def test_every_public_function_has_a_row():
    """A new name needs a row in the table, or a word on what it gives instead of an answer."""
    rows = {row.call for row in ROWS} | {conversion.func for conversion in CONVERSIONS.values()}
    assert [name for name, function in public() if function not in rows and name not in NO_ANSWER] == []
    names = {name for name, _ in public()}
    assert [name for name in NO_ANSWER if name not in names] == [], "no row for what is gone"


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_have_a_certificate(name):
    conversion = CONVERSIONS[name]()
    assert conversion.__dataclass_params__.frozen
    assert conversion.certificate.theory == name and conversion.certificate.status is wf.Status.success
    assert conversion.certificate.checks and conversion.certificate.wall_time > 0


def test_every_theory_has_a_core_or_says_why():
    theories = {"prior", "finite_width", "posterior", "dynamics", "proportional"}
    assert {name.split(" ")[0] for name in CORES} | set(NO_CORE) == theories


# Cores.


@lru_cache
def core_of(name) -> Core:
    return CORES[name]()


@pytest.fixture(params=CORES)
def core(request):
    with jax.enable_x64(True):
        yield core_of(request.param)


def test_jit_is_plain(core):
    contracts.assert_jit_is_plain(core.function, *core.point)


def test_vmap_is_loop(core):
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf, 0.9 * leaf]), core.point)
    contracts.assert_vmap_is_loop(core.function, *batch)


def test_gradient_is_finite_difference(core):
    contracts.assert_gradient_is_difference(core.function, *core.point, step=core.step, reverse=core.reverse)
