"""Progress: one bar on a terminal, a line now and then where it is redirected, nothing where it is not wanted."""

import pytest
from rich.console import Console

from widefield.answer import progress
from widefield.answer.progress import bar, stages


@pytest.fixture
def terminal(monkeypatch):
    """A console that takes itself for a terminal and keeps what it shows."""
    console = Console(force_terminal=True, record=True, width=100, stderr=True)
    monkeypatch.setattr("rich.console.Console", lambda **options: console)
    return console


def run(n=4, shown=None, seconds=100.0):
    with bar("work", n, shown, seconds) as advance:
        for _ in range(n):
            advance(1)


def test_lines_where_it_is_redirected(capsys, monkeypatch):
    run()
    assert capsys.readouterr() == ("", ""), "unasked, only a terminal shows a bar"
    run(shown=True)
    assert capsys.readouterr() == ("", "work: 4/4\n"), "one line at the end of a short run, without control characters"
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    run(20, shown=True)
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 12 and lines[-1] == "work: 20/20"
    assert len(set(lines)) == len(lines), "nothing is told twice"


def test_silence(capsys, terminal):
    run(shown=False)
    run(seconds=1.0)
    assert capsys.readouterr() == ("", "")


def test_one_bar_on_a_terminal(capsys, terminal):
    run()
    text = capsys.readouterr().err
    assert "work" in text and "4/4" in text
    with stages("figure") as report:
        report(1, 3, "theory")
        run(shown=True)
        report(3, 3, "networks")
    text = capsys.readouterr().err
    assert "4/4" not in text, "what runs inside shows no bar of its own"
    assert "figure: networks" in text
    run()
    assert "4/4" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["yes", 1, 0.0, [True]])
def test_other_words_are_refused(wrong):
    with pytest.raises(ValueError, match="`progress` must be True or False"):
        run(shown=wrong)
