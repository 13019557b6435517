"""A scale of the initial weights for each matrix (Appendix D.8): explicit solutions and networks."""

import pytest

import widefield as wf
from tests.dynamics import test_contracts, test_statistics
from tests.dynamics.march import test_responses
from tests.dynamics.question import experiment, predict
from tests.dynamics.test_oracles import DEEP, EVERYWHERE, TIED, UNTIED, ask, assert_is_literal

full = pytest.mark.full
CASES = {
    "deep": (wf.DNN(2, "linear"), DEEP, {"initial_scale": (0.8, 1.3, 0.6)}),
    "deep 3, decay": (wf.DNN(3, "linear"), DEEP, {"initial_scale": (1.2, 0.7, 1.1, 0.5), "weight_decay": 0.4}),
    "tied": (TIED, EVERYWHERE, {"initial_scale": (0.8, 1.3, 0.6)}),
    "untied, driven everywhere": (UNTIED, EVERYWHERE, {"initial_scale": (0.8, 1.3, 0.7, 0.6)}),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "deep" else full) for n in CASES])
def test_scales_against_the_explicit_solution(name):
    network, task, changes = CASES[name]
    assert_is_literal(network, task, **changes)
    test_responses.assert_is_explicit(network, task, **changes)


def test_equal_scales_are_one_scale():
    network = wf.DNN(2, "linear")
    one, three = (ask(network, DEEP, initial_scale=scale) for scale in (0.7, [0.7, 0.7, 0.7]))
    assert one.data.identical(three.data)
    trials = [
        experiment(network, DEEP, richness=1.0, rate=0.1, steps=3, width=8, replicates=2, seed=0, initial_scale=scale)
        for scale in (0.7, (0.7, 0.7, 0.7))
    ]
    assert trials[0].data.identical(trials[1].data)


def test_a_buffer_that_grows_keeps_the_scale():
    """Directions beyond the first buffer have noises of the same scale as those within."""
    assert_is_literal(wf.DNN(2, "linear"), DEEP, steps=24, rate=0.05, initial_scale=0.6)


@pytest.mark.parametrize("call", [predict, experiment])
def test_bad_scales(call):
    more = {"width": 8, "replicates": 1, "seed": 0} if call is experiment else {}
    biased = wf.DNN(2, "linear", bias_variance=0.2, readout_bias_variance=0.0)
    for network, scale, message in (
        (wf.DNN(2, "linear"), (1.0, 1.0), "`initial_scale` must be a number or 3 of them"),
        (wf.RNN(4, "linear"), (1.0,) * 5, "`initial_scale` must be a number or 3 of them"),
        (wf.DNN(2, "linear"), (1.0, 0.0, 1.0), r"`initial_scale\[1\]` must be a finite positive number"),
        (biased, (1.0, 1.0, 1.0), "`initial_scale` must be one number"),
    ):
        with pytest.raises(ValueError, match=message):
            call(network, test_contracts.TASK, **test_contracts.PHYSICS, **more, initial_scale=scale)


@full
@pytest.mark.parametrize("network", [wf.DNN(2, "tanh"), wf.RNN(3, "tanh", weight_variance=1.3)])
def test_networks_of_several_scales(network):
    """2·wide − narrow; scales in the other order are seen."""
    task = test_statistics.FIRST if network.depth == 2 else test_statistics.EVERYWHERE
    physics = {"richness": 1.0, "rate": 0.1, "steps": 8, "initial_scale": (0.7, 1.4, 0.9)}
    samples = test_statistics.trained(network, task, physics, (100, 200), 150, seed=3)
    wrong = physics | {"initial_scale": (0.9, 1.4, 0.7)}
    assert test_statistics.meets(test_statistics.predicted(network, task, physics), samples)
    assert not test_statistics.meets(test_statistics.predicted(network, task, wrong), samples)
