"""The equation trail: every equation that a docstring cites is in the docs, once, with its source."""

import re
from collections import Counter
from pathlib import Path

import pytest

import widefield

ROOT = Path(widefield.__file__).parent
PAGES = sorted((ROOT.parents[1] / "docs" / "theory").glob("*.md"))
THEORIES = {path.name for path in (ROOT / "theories").iterdir() if (path / "__init__.py").exists()}
TAG = re.compile(r"\\tag\{([a-z_]+\.\d+)\}")
CITED = re.compile(r"\(((?:" + "|".join(sorted(THEORIES)) + r")\.\d+)\)")
UNSHIPPED = re.compile(r"theory[ -]page|theory/[a-z_]+(?!\.md)\b|the page'?s?\b", re.IGNORECASE)
DISPLAY = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
SOURCE = re.compile(
    r"\b(Eqs?\. [\dA-Z]|Secs?\.|Sections? |App\.|Appendix|Appendices|chapter|poster|derived)|\(20\d\d\)"
)


def tags(page: Path) -> list[str]:
    return TAG.findall(page.read_text())


def test_every_theory_has_a_page():
    assert {page.stem for page in PAGES} >= THEORIES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_equations_are_numbered_in_order_and_once(page):
    numbers = tags(page)
    assert numbers == [f"{page.stem}.{i + 1}" for i in range(len(numbers))] and numbers
    untagged = [body.strip()[:60] for body in DISPLAY.findall(page.read_text()) if not TAG.search(body)]
    assert not untagged, "every display equation has a number"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_equations_have_their_sources(page):
    """Every section with equations says where they come from."""
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    bare = [section.splitlines()[0] for section in sections if TAG.search(section) and not SOURCE.search(section)]
    assert not bare


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_citations_resolve(path):
    text, known = path.read_text(), {tag for page in PAGES for tag in tags(page)}
    missing = set(CITED.findall(text)) - known
    assert not missing, f"{path.name} cites equations that no page has"
    named = UNSHIPPED.findall(text)
    assert not named, f"{path.name} names a page that does not ship: {named}"


def test_most_equations_are_cited():
    """A page that the code does not point to is not the page of this code."""
    cited = Counter(tag.split(".")[0] for path in ROOT.rglob("*.py") for tag in set(CITED.findall(path.read_text())))
    for page in PAGES:
        assert cited[page.stem] >= min(5, len(tags(page))), f"{page.stem} is hardly cited"
