"""`start=`: the same answers from a neighbor's, sooner; what cannot be a start is refused by name."""

import numpy as np
import pytest

import widefield as wf

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(2, 3)), RNG.normal(size=2)
TASK, UNIT = wf.Task(X, Y, x_test=X[:1] + 0.3), wf.Task(np.ones((1, 1)), np.ones(1))
STRONG = wf.Task(np.ones((1, 1)), 6 * np.ones(1))
CASES = {
    "linear": (wf.RNN(3, "linear"), TASK),
    "untied": (wf.DNN(3, "linear"), TASK),
    "coherent": (wf.RNN(3, "linear"), STRONG),
    "erf": (wf.RNN(2, "erf"), TASK),
    "erf coherent": (wf.RNN(3, "erf"), STRONG),
}


def agree(one: wf.Solution, other: wf.Solution, rtol: float) -> bool:
    """Whether every field is the same to ``rtol`` of its largest entry."""
    names = ("hidden", "feature", "conjugate", "prediction", "free_energy", "stability")
    pairs = [(one.data[name].values, other.data[name].values) for name in names]
    return one.branch == other.branch and all(np.abs(a - b).max() <= rtol * np.abs(a).max() for a, b in pairs)


@pytest.mark.parametrize("name", CASES)
def test_a_start_changes_the_way_and_not_the_answer(name):
    network, task = CASES[name]
    rtol = 1e-7 if network.activation.known_as("linear") else 1e-5
    near, cold = (wf.posterior(network, task, temperature=t) for t in (0.32, 0.3))
    warm = wf.posterior(network, task, temperature=0.3, start=near)
    assert warm.status is wf.Status.success
    assert agree(cold, warm, rtol)
    assert not agree(near, warm, rtol), "a neighbor must not pass for the answer"
    assert any("given solution" in note for note in warm.notes)
    assert len(warm.certificate.diagnostics["branches"]) == len(cold.certificate.diagnostics["branches"])
    assert warm.certificate.steps <= cold.certificate.steps


@pytest.mark.parametrize("activation", ["linear", "erf"])
def test_a_start_of_the_other_branch_is_not_what_is_returned(activation):
    network = wf.RNN(3, activation)
    coherent = wf.posterior(network, STRONG, temperature=0.3)
    incoherent = wf.posterior(network, STRONG, temperature=0.3, branch="incoherent")
    assert (coherent.branch, incoherent.branch) == ("coherent", "incoherent")
    again = wf.posterior(network, STRONG, temperature=0.3, start=incoherent)
    other = wf.posterior(network, STRONG, temperature=0.3, branch="incoherent", start=coherent)
    assert agree(coherent, again, 1e-5)
    assert agree(incoherent, other, 1e-5)


def test_a_start_far_away_leads_to_the_same_answer():
    network = wf.RNN(3, "linear")
    far = wf.posterior(wf.DNN(3, "linear", input_variance=4.0), wf.Task(X[::-1] + 5, 9 * Y), temperature=3.0)
    cold = wf.posterior(network, TASK, temperature=0.3)
    assert agree(cold, wf.posterior(network, TASK, temperature=0.3, start=far), 1e-7)


def test_what_is_no_start_is_refused_by_name():
    network = wf.RNN(3, "linear")
    ask = lambda start, **more: wf.posterior(network, TASK, temperature=0.3, start=start, **more)  # noqa: E731
    failed = wf.posterior(network, wf.Task(X, 5 * Y), temperature=0.3, max_steps=1, throw=False)
    good = wf.posterior(network, TASK, temperature=0.3)
    wrong = {
        "posterior": [0.3, "start", good.data, wf.prior(network, TASK)],
        "full": [wf.posterior(network, TASK, temperature=0.3, method="perturbative", throw=False)],
        "success": [failed],
        "fields": [wf.posterior(network, TASK, temperature=0.3, quantities="hidden")],
        "states and samples": [
            wf.posterior(wf.RNN(2, "linear"), TASK, temperature=0.3),
            wf.posterior(network, UNIT, temperature=0.3),
        ],
    }
    for words, starts in wrong.items():
        for start in starts:
            with pytest.raises(ValueError, match=f"`start` .*{words}"):
                ask(start)
    with pytest.raises(ValueError, match="`start` must be None for method='perturbative'"):
        ask(good, method="perturbative")
