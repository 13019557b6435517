"""The pages and the code: public names, default tolerances and files that pages name are those of the code."""

import inspect
import re
from pathlib import Path

import pytest

import widefield as wf

ROOT = Path(wf.__file__).parents[2]
DOCS = ROOT / "docs"
RUNNABLE = ("README.md", "docs/index.md", "docs/quickstart.md")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md"])
ENTRY = re.compile(r"^\.\. (?:auto(?:function|class|exception)|py:module):: (\S+)$", re.MULTILINE)
MODULES = {
    "widefield": wf,
    "widefield.simulate": wf.simulate,
    "widefield.convert": wf.convert,
    "widefield.tasks": wf.tasks,
}
PUBLIC = {f"{module}.{name}": getattr(owner, name) for module, owner in MODULES.items() for name in owner.__all__}
RTOL = re.compile(r"^\| ((?:`wf\.\w+`(?:, )?)+)[^|]*\|[^|]*\| ([^|]+) \|", re.MULTILINE)


def stated() -> dict[str, set[float]]:
    """The default tolerances in the table of the design page, by call."""
    rows = RTOL.findall((DOCS / "design.md").read_text())
    numbers = lambda cell: {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", cell)}  # noqa: E731
    return {call: numbers(cell) for calls, cell in rows for call in re.findall(r"wf\.(\w+)", calls)}


def test_page_has_every_public_name_once():
    names = ENTRY.findall((DOCS / "reference.md").read_text())
    assert sorted(names) == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_names_say_what_they_are(name):
    documented = inspect.getdoc(PUBLIC[name]) or ""
    assert documented.split("\n")[0].endswith((".", ":")), f"{name} needs a summary line"


def test_default_tolerances_are_stated():
    """Every call with an ``rtol`` has a row, and a default that is a number is the one in the row."""
    table = stated()
    for name in wf.__all__:
        call = getattr(wf, name)
        if not inspect.isfunction(call) or "rtol" not in inspect.signature(call).parameters:
            continue
        assert table.get(name), f"{name} is missing in the table of tolerances"
        default = inspect.signature(call).parameters["rtol"].default
        assert default is None or default in table[name], f"{name} has rtol={default}, the page says {table[name]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_pages_name_exist(page):
    files = [
        path.as_posix() for folder in ("src", "tests", "benchmarks", "fuzz") for path in (ROOT / folder).rglob("*.py")
    ]
    named = re.findall(r"`([\w/]+\.py)`", page.read_text())
    assert not [name for name in named if not any(file.endswith(f"/{name}") for file in files)]


@pytest.mark.full
@pytest.mark.parametrize("page", RUNNABLE)
def test_examples_run(page, tmp_path, monkeypatch):
    """The blocks of a page, one after the other, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.+?)```", (ROOT / page).read_text(), re.DOTALL)):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
