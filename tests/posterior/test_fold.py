"""Where the incoherent branch ends: at its instability or, for warm networks, in a fold before it; closed curves."""

import numpy as np
import pytest

import widefield as wf

from . import oracle

X = np.ones((1, 1))
KAPPAS = (1e-9, 0.5, 5.0, 30.0, 39.3, 39.42, 39.5, 41.0, 60.0, 1e3, 1e5, 1e6)


def asked(T, kappa, strength, **options):
    """A transition with λ = ``strength`` at a factor of 1, whatever it ends with."""
    task = wf.Task(X, np.array([np.sqrt(strength)]))
    return wf.transition(wf.RNN(T - 1, "linear"), task, temperature=kappa, points=2, throw=False, **options)


@pytest.mark.parametrize("T", [4, 5, 6, 8, 12])
def test_the_instability_is_the_largest_label_of_the_closed_curve(T):
    """max λ(s) over s up to (T − 2)/(T − 3), in a fold before it for warm networks; other branches are 1e-3 away and more."""
    for kappa in KAPPAS:
        strength, s, end = oracle.incoherent_curve(T, kappa)
        found = asked(T, kappa, 1.9 * strength)
        np.testing.assert_allclose(1.9 * found.instability**2, 1, rtol=1e-9, err_msg=f"κ = {kappa}")
        folded = s < end
        assert any("fold" in note for note in found.certificate.notes) == (folded or (kappa == 39.5 and T == 4)), kappa
        if folded:
            assert found.order == "first"
        checks = found.certificate.checks
        assert checks["residual"].met and checks["error"].met and checks["marginal"].met
        assert found.certificate.status is (wf.Status.success if checks["lost"].met else wf.Status.incomplete)


def test_the_other_points_beside_a_fold():
    """T = 4: the spinodal is the least λ of the coherent curve, and there both have one free energy at the crossing."""
    for kappa in (60.0, 1e3):
        strength = oracle.incoherent_curve(4, kappa)[0]
        found = asked(4, kappa, strength)
        assert found.certificate.status is wf.Status.success
        spinodal, _ = oracle.coherent_spinodal(kappa)
        np.testing.assert_allclose(found.spinodal**2 * strength, spinodal, rtol=1e-8)
        equal = found.equal_free_energy**2 * strength
        task = wf.Task(X, np.array([np.sqrt(equal)]))
        s = oracle.stretch(equal, kappa, 3)
        incoherent = np.diag(s ** np.arange(1.0, 4.0))
        coherent = oracle.coherent_kernel(_upper(equal, kappa))
        free = [oracle.free_energy(wf.RNN(3, "linear"), task, kappa, H, np.eye(3)) for H in (incoherent, coherent)]
        np.testing.assert_allclose(*free, rtol=1e-8)


def _upper(strength, kappa):
    """The larger root s of the coherent curve: its minimum."""
    import scipy.optimize

    _, s = oracle.coherent_spinodal(kappa)
    curve = lambda s: (4 * s * (s - 1) ** 2 + kappa) ** 2 / (4 * s * (s - 1)) - strength  # noqa: E731
    return scipy.optimize.brentq(curve, s, 10 * s, xtol=1e-14)


def test_along_the_temperature_too():
    """λ = 700 at T = 4: cooling from κ̂ = 100 the incoherent state ends in the fold of the closed curve."""
    kappa = _fold_temperature(700.0)
    task = wf.Task(X, np.array([np.sqrt(700.0)]))
    found = wf.transition(wf.RNN(3, "linear"), task, temperature=80.0, along="temperature", points=2, throw=False)
    np.testing.assert_allclose(80 * found.instability, kappa, rtol=1e-9)
    assert found.order == "first"


def _fold_temperature(strength):
    import scipy.optimize

    return scipy.optimize.brentq(lambda kappa: oracle.incoherent_curve(4, kappa)[0] - strength, 45, 100, xtol=1e-12)


@pytest.mark.parametrize("factor", [5.31, 5.38, 5.44])
def test_the_stable_incoherent_state_is_preferred(factor):
    """κ̂ = 60 between the folds: of two incoherent states the minimum is returned, not the saddle below it."""
    strength = (factor * 4.5) ** 2
    task = wf.Task(X, np.array([np.sqrt(strength)]))
    found = wf.posterior(wf.RNN(3, "linear"), task, temperature=60.0, branch="incoherent")
    s = oracle.stretch(strength, 60.0, 3)
    np.testing.assert_allclose(np.diag(found.hidden.values[..., 0, 0]), s ** np.arange(1, 4), rtol=1e-7)
    assert found.stability > 0 and found.branch == "incoherent"


def test_a_transition_comes_back_from_its_file(tmp_path):
    found = asked(4, 1.0, 20.0)
    again = wf.Transition.of(wf.load(found.save(tmp_path / "transition.nc")))
    assert str(again) == str(found) and again.certificate == found.certificate
    assert again.curve.data.identical(found.curve.data)
    with pytest.raises(ValueError, match="`curve`"):
        wf.Transition.of(wf.posterior(wf.RNN(3, "linear"), wf.Task(X, np.ones(1)), temperature=1.0))
