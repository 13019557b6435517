"""Weakly nonlinear warm networks near the fold of their incoherent branch, against one-dimensional integrals.

One input, an odd activation: incoherent states are chains of densities exp(−h²/2C + Φ̃φ²). The field Φ̃ of the first state,
by shooting, gives all others and the label at the end, so that every incoherent state lies on one curve, whose largest label
is the fold.
"""

import re
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

import widefield as wf
from widefield.theories.posterior.branch_choice import branches_of
from widefield.theories.posterior.branches import Options
from widefield.theories.posterior.problem import problem_of

from . import oracle

KAPPA, DEPTH, SLOPE = 1000.0, 3, 0.05
NODES, WEIGHTS = np.polynomial.legendre.leggauss(400)
BEND = np.sqrt(np.pi) / (2 * SLOPE)
WEAK = wf.Activation(lambda x: BEND * jax.scipy.special.erf(SLOPE * jnp.asarray(x)), name="weak")


def weak(h):
    return BEND * scipy.special.erf(SLOPE * h)


def moments(phi, variance, field):
    """<h²> and <φ²>."""
    h = 24 * np.sqrt(variance) * NODES
    density = WEIGHTS * np.exp(-(h**2) / (2 * variance) + field * phi(h) ** 2)
    return np.array([density @ h**2, density @ phi(h) ** 2]) / density.sum()


def chain(phi, field, kappa=KAPPA):
    """y² and <h²> of every state where the first one has a conjugate ``field``."""
    variance, hidden = 1.0, []
    for state in range(DEPTH):
        if state:  # the field of the state before is w d ln Z / dC of this one
            wanted = variance + 2 * variance**2 * field
            miss = lambda f, C=variance, goal=wanted: moments(phi, C, f)[0] - goal  # noqa: E731
            field = scipy.optimize.brentq(miss, 0, 0.49 / variance, xtol=1e-15)
        square, feature = moments(phi, variance, field)
        hidden.append(square)
        variance = feature
    return 2 * field * (feature + kappa) ** 2, np.array(hidden)


@lru_cache
def fold(phi, kappa=KAPPA):
    """The largest label and the field there."""
    fields = np.linspace(0.02, 0.24, 12)
    middle = int(np.argmax([chain(phi, t, kappa)[0] for t in fields]))
    low, high = fields[middle - 1], fields[middle + 1]
    found = scipy.optimize.minimize_scalar(
        lambda t: -chain(phi, t, kappa)[0], bounds=(low, high), method="bounded", options={"xatol": 1e-10}
    )
    return -found.fun, found.x


def test_the_curve_of_linear_networks_is_the_closed_one():
    for kappa in (60.0, KAPPA):
        strength, _, _ = oracle.incoherent_curve(DEPTH + 1, kappa)
        np.testing.assert_allclose(fold(np.positive, kappa)[0], strength, rtol=1e-10)


def test_states_beside_the_fold_are_those_of_the_curve():
    strength, end = fold(weak)
    task = wf.Task(np.ones((1, 1)), [np.sqrt(strength)])
    network = wf.RNN(DEPTH, WEAK)
    with jax.enable_x64(True):
        branches = branches_of(problem_of(network, task, KAPPA), network.activation, Options("transition", None, 300))
        states = [branches.incoherent(share) for share in (0.9, 0.99, 0.997)]
    for share, state in zip((0.9, 0.99, 0.997), states, strict=True):
        field = scipy.optimize.brentq(lambda t, s=share: chain(weak, t)[0] - s**2 * strength, 1e-6, end)
        hidden = np.diag(state.hidden)
        np.testing.assert_allclose(hidden, chain(weak, field)[1], rtol=1e-6)
        assert not np.allclose(hidden, chain(weak, 1.001 * field)[1], rtol=1e-5)
        assert branches.reached(state) and 0 < state.stability < 0.2


@pytest.mark.full
def test_a_search_that_loses_the_branch_says_how_far_it_came():
    """The fold itself is not reached: the answer is no success, and the branch did exist up to the factor it names."""
    strength, _ = fold(weak)
    task = wf.Task(np.ones((1, 1)), [np.sqrt(strength / 1.9)])
    found = wf.transition(wf.RNN(DEPTH, WEAK), task, temperature=KAPPA, points=2, throw=False)
    if found.instability is not None:
        np.testing.assert_allclose(found.instability**2 / 1.9, 1, rtol=1e-5)
        assert found.order == "first"
        return
    assert found.certificate.status is wf.Status.incomplete
    (note,) = (note for note in found.certificate.notes if "could not be followed" in note)
    assert 0.5 < float(re.search(r"minimum up to ([\d.]+)", note)[1]) < np.sqrt(1.9)
