"""The standing attack in miniature: it asks, counts, shrinks, and knows a refusal from a defect."""

import numpy as np
import pytest

import widefield as wf
from fuzz.__main__ import attack, read, table
from fuzz.judges import TABLE, prior
from fuzz.planted import PLANTED, measure
from fuzz.quadrature import average, functions
from fuzz.questions import Question
from fuzz.verdicts import VERDICTS, Defect, Judge, answer, outcome, script, shrink

CHEAP = ("finite width, closed forms", "posterior, by hand", "proportional, lazy")


@pytest.mark.parametrize("name", CHEAP)
def test_a_few_questions_are_answered_or_refused_and_kept(name, tmp_path):
    lines = attack(7, 1.0, questions=2, only=name, out=tmp_path / "verdicts.jsonl")
    assert [line["judge"] for line in lines] == [name] * 2 and {line["verdict"] for line in lines} <= set(VERDICTS[:3])
    kept = read([tmp_path / "verdicts.jsonl"])
    assert table(kept) == table(lines) and table(kept[:-1]).splitlines()[2].split()[-2] == "1", "one is asked, no more"


def test_every_judge_draws_the_same_question_twice():
    for judge in TABLE:
        one, two = (judge.draw(np.random.default_rng([3, 1])) for _ in range(2))
        assert one == two and eval(repr(one), {"Question": Question}) == one


def test_brute_quadrature_knows_closed_forms():
    """Arcsine and arc-cosine laws at unequal variances, near correlation −1 too."""
    for a, b, c in ((1.3, 0.7, 0.5), (300.0, 2.0, -0.999999 * np.sqrt(600))):
        f, slope, turns = functions("erf")
        expected = 2 / np.pi * np.arcsin(2 * c / np.sqrt((1 + 2 * a) * (1 + 2 * b)))
        assert average(f, a, b, c, turns) == pytest.approx(expected, abs=1e-13)
        angle = np.arccos(c / np.sqrt(a * b))
        f, slope, turns = functions("relu")
        expected = np.sqrt(a * b) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
        assert average(f, a, b, c, turns) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert average(slope, a, b, c, turns) == pytest.approx((np.pi - angle) / (2 * np.pi), abs=1e-9)


def test_a_wrong_library_is_caught_and_the_question_made_small(monkeypatch):
    right = wf.prior

    def spoiled(net, task, **options):
        solution = right(net, task, **options)
        solution.data["feature"][...] *= 1 + 1e-5
        return solution

    judge = Judge("spoiled", prior.draw, prior.by_quadrature)
    words = {"kind": "DNN", "depth": 3, "activation": "tanh", "bias_variance": 0.3}
    question = Question(words, np.random.default_rng(0).normal(size=(4, 2)).tolist(), seed=1)
    assert outcome(judge, question) == ("agreed", "")
    monkeypatch.setattr(wf, "prior", spoiled)
    verdict, said = outcome(judge, question)
    assert verdict == "defect"
    small, said = shrink(judge, question, said, seconds=20)
    assert len(small.x) == 1 and small.network["depth"] <= 2 and "bias_variance" not in small.network
    assert "replay('spoiled'" in script(judge, small) and "'depth'" in script(judge, small)


def test_a_planted_error_is_seen_and_taken_out_again():
    row = next(row for row, (name, *_) in enumerate(PLANTED) if name == "finite width, closed forms")
    right, found = wf.finite_width, measure(row, 0, 2)
    assert found["seen"] == found["of"] > 0 and wf.finite_width is right


def test_every_planted_error_has_its_judge():
    assert {name for name, *_ in PLANTED} <= {judge.name for judge in TABLE}


def test_a_refusal_names_its_argument():
    def refuses(message):
        def call(**options):
            raise ValueError(message)

        return Judge("refuses", prior.draw, lambda question: answer(call))

    question = prior.draw(np.random.default_rng(0))
    assert outcome(refuses("`noise` must not be negative"), question)[0] == "refused"
    assert outcome(refuses("bad input"), question)[0] == "defect"
    with pytest.raises(Defect, match="NaN in hidden"):
        nan = wf.prior(wf.DNN(1), wf.Task(np.ones((1, 1))), quantities=("hidden",))
        nan.data["hidden"][...] = np.nan
        answer(lambda **options: nan)
