"""The order of the rooms: a module imports only from its own room and from rooms above it."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import widefield

ROOT = Path(widefield.__file__).parent
ROOMS = (
    "question", "answer", "measures", "gaussian", "solvers", "theories", "simulate", "convert", "compare", "plot", "sweep", "gallery",
    "cli",
)  # fmt: skip
FREE_OF_THEORY = {"simulate": {"question", "answer", "measures", "simulate"}}
LAZY_DOOR = ("widefield.answer.solution", "widefield.plot")  # Solution.plot opens the room below when it is called
FRONT = {"widefield", "widefield.__main__"}
MODULES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def imported(path: Path) -> set[str]:
    """Every module of the package that ``path`` imports, also inside functions."""
    tree = ast.parse(path.read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {_module(node.module or "", alias.name) for alias in node.names}
    return {name for name in found if name.split(".")[0] == "widefield"}


def _module(module: str, name: str) -> str:
    return f"{module}.{name}" if f"{module}.{name}" in NAMES else module


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def theory_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[2] if parts[1:2] == ["theories"] and len(parts) > 2 else None


def test_every_module_lies_in_a_room():
    rooms = {room_of(name) for name in NAMES - FRONT}
    assert rooms == set(ROOMS)
    assert all(ROOMS.index(a) < ROOMS.index(b) for a, b in pairwise(sorted(rooms, key=ROOMS.index)))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_rooms_import_upwards(path):
    here = name_of(path)
    if here in FRONT:
        return
    for module in imported(path):
        if (here, module) == LAZY_DOOR:
            continue
        if module == "widefield":  # the public names, as a user would import them
            assert room_of(here) in ("sweep", "gallery", "cli"), f"{here} imports the whole package"
            continue
        room, other = room_of(here), room_of(module)
        assert ROOMS.index(other) <= ROOMS.index(room), f"{here} imports {module} from a room below"
        assert other in FREE_OF_THEORY.get(room, ROOMS), (
            f"{here} imports {module}: simulations share no code with theories"
        )


@pytest.mark.parametrize("path", [p for p in MODULES if theory_of(name_of(p))], ids=name_of)
def test_only_the_core_of_the_prior_crosses_theories(path):
    here = name_of(path)
    for module in imported(path):
        if theory_of(module) not in (None, theory_of(here)):
            assert module.startswith("widefield.theories.prior.core"), f"{here} imports {module}"


def test_rooms_are_small():
    """A dozen files a folder or so, none of more than 400 lines: a folder is a table of contents."""
    folders = {path.parent for path in MODULES}
    crowded = {name_of(folder / "__init__.py"): n for folder in folders if (n := len(list(folder.glob("*.py")))) > 16}
    assert not crowded
    lengths = {name_of(path): n for path in MODULES if (n := path.read_text().count("\n")) > 400}
    assert not lengths
