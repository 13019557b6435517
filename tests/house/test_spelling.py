"""One spelling, the American one, as in the public names `centered` and `parameterization`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BRITISH = re.compile(
    r"[a-z]*(?:colour|behaviour|neighbour|favour|labell(?:ed|ing)|modell(?:ed|ing)|cancell(?:ed|ing)|centre[ds]?\b|centring"
    r"|(?:al|ar|er|or|im|tor)is(?:e|ed|es|er|ing|ation|ations)\b|analys(?:ed|ing)\b|artefact)[a-z]*",
    re.IGNORECASE,
)
FINE = {"otherwise", "likewise", "arise", "arises", "precise", "raise", "raised", "raises", "raising", "noise", "noises",
        "exercise", "promise", "rises", "characteristic", "comprise", "comprises", "cancellederror"}  # fmt: skip


def test_one_spelling():
    files = [path for folder in ("src", "docs", "tests", "benchmarks") for path in (ROOT / folder).rglob("*")]
    files = [
        path
        for path in files
        if path.suffix in (".py", ".md") and path != Path(__file__) and "_build" not in path.parts
    ]
    words = {(word, path.name) for path in [*files, ROOT / "README.md"] for word in BRITISH.findall(path.read_text())}
    assert not {(word, name) for word, name in words if word.lower() not in FINE}
