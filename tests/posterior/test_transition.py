"""Where recurrent networks become coherent, against closed forms and tables of an independent program."""

import numpy as np
import pytest

import widefield as wf

from . import oracle

UNIT = wf.Task(np.ones((1, 1)), np.ones(1))  # λ = factor², κ̂ = temperature for unit variances
TINY = 1e-9
# T: instability, equal free energy, end of the coherent branch, each at κ̂ = 0 and 1
FIRST_ORDER = {
    6: ((1.404664, 1.396193, 1.39358), (2.150432, 2.127725, 2.12092)),
    7: ((0.953674, 0.899582, 0.88553), (1.519210, 1.423682, 1.39938)),
    8: ((0.716636, 0.629442, 0.60961), (1.172452, 1.026809, 0.99395)),
}


def recurrent(T):
    return wf.RNN(T - 1, "linear")


@pytest.mark.parametrize("T", [4, pytest.param(5, marks=pytest.mark.full)])
@pytest.mark.parametrize("kappa", [TINY, 1.0])
def test_second_order(T, kappa):
    found = wf.transition(recurrent(T), UNIT, temperature=kappa, points=4)
    assert found.order == "second" and found.exponent == 0.5
    assert found.spinodal is None and found.equal_free_energy is None
    np.testing.assert_allclose(found.instability**2, oracle.instability(T, kappa), rtol=1e-9)
    if T == 4:  # ρ23² = 2(s − 2), s − 2 = (λ/λ_c − 1)/(40/(8 + κ̂) − 3/2)
        np.testing.assert_allclose(found.prefactor**2, 2 / (40 / (8 + kappa) - 1.5), rtol=1e-8)
    elif kappa == TINY:  # ρ12² = (λ/λ_c − 1)/6, and ρ34 = 3 ρ12
        np.testing.assert_allclose(found.prefactor**2, 9 / 6.0, rtol=1e-3)


@pytest.mark.parametrize("T", [6, pytest.param(7, marks=pytest.mark.full), pytest.param(8, marks=pytest.mark.full)])
def test_first_order(T):
    for kappa, table in zip((TINY, 1.0), FIRST_ORDER[T], strict=True):
        found = wf.transition(recurrent(T), UNIT, temperature=kappa, points=4)
        assert found.order == "first" and found.exponent is None
        points = np.array([found.instability, found.equal_free_energy, found.spinodal]) ** 2
        np.testing.assert_allclose(points[:2], table[:2], atol=1e-6)
        np.testing.assert_allclose(points[2], table[2], atol=1e-5)


def test_the_curve_has_both_branches():
    found = wf.transition(recurrent(4), UNIT, temperature=1.0, points=20)
    curve = found.curve.data
    strength = curve.factor.values**2
    coherent = strength > 10.125 * (1 + 1e-6)
    order = curve.order_parameter.sel(branch="coherent").values
    assert np.all(np.isnan(order[~coherent]))
    s = np.array([oracle.coherent_stretch(v, 1.0) for v in strength[coherent]])
    np.testing.assert_allclose(order[coherent], np.sqrt(s * (s - 2)) / (s - 1), atol=1e-8)
    assert np.all((curve.stability.sel(branch="incoherent") > 0).values == ~coherent)
    assert "second order" in str(found) and "instability" in found._repr_html_()


def test_just_beyond_the_tricritical_point():
    """The three points merge, and are still told: they differ by less than 1e-5 at κ̂ = 56/3 + 0.01."""
    found = wf.transition(recurrent(4), UNIT, temperature=56 / 3 + 0.01, points=4)
    assert found.order == "first" and found.spinodal <= found.equal_free_energy <= found.instability
    np.testing.assert_allclose([found.spinodal, found.equal_free_energy], found.instability, rtol=1e-5)


def test_along_the_temperature():
    """λ = 16 = (8 + κ̂)²/8 at κ̂ = 8(√2 − 1); the coherent side is the colder one."""
    found = wf.transition(
        recurrent(4), wf.Task(np.ones((1, 1)), np.full(1, 4.0)), temperature=2.0, along="temperature", points=4
    )
    np.testing.assert_allclose(2 * found.instability, 8 * (np.sqrt(2) - 1), rtol=1e-9)
    order = found.curve.order_parameter.sel(branch="coherent").values
    assert np.isfinite(order[0]) and np.isnan(order[-1])


def test_tricritical_points():
    """κ̂ = 56/3 at T = 4; at T = 5 about 5.1, a program in high precision decides (81/16)."""
    four, five = (wf.tricritical(recurrent(T), UNIT, temperature=1.0) for T in (4, 5))
    np.testing.assert_allclose(four.temperature, 56 / 3, rtol=1e-8)
    np.testing.assert_allclose(four.factor, (8 + 56 / 3) / np.sqrt(8), rtol=1e-8)
    assert four.certificate.error <= 1e-10 and four.certificate.diagnostics["exists"]
    found = float(five.temperature)
    assert abs(found - 5.1) < 0.1
    assert abs(oracle.quartic_sign(found)) < 1e-7, "it falls by 0.039 per unit of κ̂, and 1e-8 is left of a²"
    assert oracle.quartic_sign(found - 0.01) > 1e-4, "a point 0.2 % off is seen"


@pytest.mark.full
def test_a_nonlinear_network_has_its_transition():
    """erf, w = 2, κ = 0.2: two grids of an independent program agree on y_c = 4.25540."""
    net, task = wf.RNN(3, "erf", weight_variance=2.0), wf.Task(np.ones((1, 1)), np.full(1, 4.0))
    found = wf.transition(net, task, temperature=0.2, points=6)
    np.testing.assert_allclose(4 * found.instability, 4.25540, atol=1e-5)
    assert found.order == "second" and found.spinodal is None
    order = found.curve.order_parameter.sel(branch="coherent").values
    assert np.isnan(order[:3]).all() and np.isfinite(order[3:]).all()
    growth = (found.curve.factor.values[3] / found.instability) ** 2 - 1  # 5.7 % beyond, where (ρ/m)² has bent by 5 %
    np.testing.assert_allclose(order[3], found.prefactor * np.sqrt(growth), rtol=0.06)


@pytest.mark.full
@pytest.mark.parametrize(("along", "label", "kappa"), [("labels", 3.0, 1.0), ("temperature", 4.0, 2.0)])
def test_a_second_order_transition_on_the_nonlinear_road(along, label, kappa):
    """A linear activation that is not so by name: instability and prefactor of the linear theory, from both sides."""
    same, task = wf.Activation(lambda h: h, name="same"), wf.Task(np.ones((1, 1)), np.full(1, label))
    exact, found = (
        wf.transition(wf.RNN(3, phi), task, temperature=kappa, along=along, points=2) for phi in ("linear", same)
    )
    assert found.order == exact.order == "second" and found.exponent == 0.5 and found.spinodal is None
    np.testing.assert_allclose(found.instability, exact.instability, rtol=1e-7)
    np.testing.assert_allclose(found.prefactor, exact.prefactor, rtol=1e-4)


@pytest.mark.full
def test_a_first_order_transition_on_the_nonlinear_road():
    """κ̂ = 24 > 56/3: a linear activation that is not so by name has the three points of the linear theory."""
    same = wf.Activation(lambda h: h, name="same")
    exact = wf.transition(recurrent(4), UNIT, temperature=24.0, points=2)
    found = wf.transition(wf.RNN(3, same), wf.Task(np.ones((1, 1)), np.full(1, 8.0)), temperature=24.0, points=2)
    assert found.order == exact.order == "first"
    for name in ("instability", "equal_free_energy", "spinodal"):
        np.testing.assert_allclose(8 * getattr(found, name), getattr(exact, name), rtol=1e-6, err_msg=name)


@pytest.mark.full
def test_a_weakly_saturating_network_has_a_first_order_transition():
    """tanh close to its linear regime, κ̂ = 40: instability above equal free energy above spinodal."""
    net, task = wf.RNN(3, "tanh", input_variance=0.02), wf.Task(np.ones((1, 1)), np.full(1, 3.0))
    found = wf.transition(net, task, temperature=0.8, points=2)
    assert found.order == "first"
    assert found.spinodal < found.equal_free_energy < found.instability


@pytest.mark.full
def test_tricritical_points_on_the_nonlinear_road():
    """56/3 for a linear activation that is not so by name; tanh tends to it as its inputs shrink, linearly in u at first."""
    same = wf.Activation(lambda h: h, name="same")
    general = wf.tricritical(wf.RNN(3, same), UNIT, temperature=10.0)
    np.testing.assert_allclose(general.temperature, 56 / 3, rtol=1e-5)
    assert abs(general.temperature / (56 / 3) - 1) <= general.certificate.error, "the estimate covers the error"
    found = []
    for u in (1e-3, 5e-4):
        task = wf.Task(np.ones((1, 1)), np.full(1, 8 * np.sqrt(u)))
        found.append(
            float(wf.tricritical(wf.RNN(3, "tanh", input_variance=u), task, temperature=12 * u).temperature) / u
        )
    assert abs(found[1] - 56 / 3) > 0.1, "its saturation is seen"
    np.testing.assert_allclose(2 * found[1] - found[0], 56 / 3, rtol=0.01)


@pytest.mark.full
@pytest.mark.parametrize("labels", [[4.0], [4.0, 0.0]])
def test_a_sampled_transition(labels):
    """One sample by draws, and six dimensions: an orthogonal sample without label changes nothing. y_c = 4.25540."""
    x = np.sqrt(len(labels)) * np.eye(len(labels))
    net, task = wf.RNN(3, "erf", weight_variance=2.0), wf.Task(x, np.array(labels))
    found = wf.transition(net, task, temperature=0.2, points=2, paths=1 << 16)
    assert found.order is None and 0 < found.instability_stderr < 0.02
    assert abs(found.instability - 4.25540 / 4) < 5 * found.instability_stderr
    assert "±" in str(found) and found.certificate.seed == 0


@pytest.mark.parametrize("net", [wf.DNN(3, "linear"), wf.RNN(2, "linear")])
def test_no_transition(net):
    """Deep networks, and recurrent ones of two states."""
    found = wf.transition(net, UNIT, temperature=1.0, points=3)
    assert found.instability is None and found.order is None and "No transition" in str(found)
    assert found.certificate.status is wf.Status.success and found.certificate.checks["lost"].value == 0


@pytest.mark.parametrize("phi", ["linear", "erf"])
def test_a_branch_that_cannot_be_followed_is_no_absence(phi):
    """One step is too few for any state: nothing is known about a transition that is there (y_c = 4.2554 for erf)."""
    net, task = wf.RNN(3, phi, weight_variance=2.0), wf.Task(np.ones((1, 1)), np.full(1, 4.0))
    lost = wf.transition(net, task, temperature=0.2, points=2, max_steps=1, throw=False)
    assert lost.certificate.status is wf.Status.incomplete and lost.certificate.checks["lost"].value > 0
    assert lost.instability is None and "could not be looked for" in str(lost)
    assert "could not be followed" in str(lost.certificate)


def test_a_lost_transition_is_loud():
    with pytest.raises(wf.SolveError, match="could not be followed"):
        wf.transition(recurrent(4), UNIT, temperature=1.0, points=2, max_steps=1)


def test_a_tricritical_search_that_is_lost_is_no_absence():
    lost = wf.tricritical(recurrent(4), UNIT, temperature=1.0, max_steps=1, throw=False)
    assert lost.status is wf.Status.incomplete and np.isnan(lost.temperature)
    for net, order in ((recurrent(6), "first"), (wf.DNN(3, "linear"), None), (wf.RNN(2, "linear"), None)):
        absent = wf.tricritical(net, UNIT, temperature=1.0)
        assert absent.status is wf.Status.success and np.isnan(absent.temperature)
        assert absent.certificate.diagnostics == {"exists": False, "order": order}


def test_sequences_have_no_sharp_transition():
    task = wf.Task(np.ones((1, 2, 1)), np.ones(1))
    assert wf.transition(recurrent(4), task, temperature=1.0, points=3).instability is None


def test_landscape_shows_the_branches():
    """Its minima are the solutions, its maximum at zero the incoherent saddle."""
    task = wf.Task(np.ones((1, 1)), np.full(1, np.sqrt(20.0)))
    s = oracle.coherent_stretch(20.0, 1.0)
    rho = np.sqrt((s - 2) / s)
    values = np.array([-rho - 0.1, -rho, 0.0, rho, rho + 0.1])
    found = wf.landscape(recurrent(4), task, temperature=1.0, values=values)
    solved = [
        wf.posterior(recurrent(4), task, temperature=1.0, branch=b).free_energy.item()
        for b in ("coherent", "incoherent")
    ]
    np.testing.assert_allclose(found.free_energy.values[[1, 2, 3]], [solved[0], solved[1], solved[0]], atol=1e-9)
    np.testing.assert_allclose(found.field.values[1:4], 0, atol=1e-6)
    assert found.free_energy.values[0] > solved[0] and found.free_energy.values[4] > solved[0]
    np.testing.assert_allclose(found.free_energy.values, found.free_energy.values[::-1], atol=1e-8)


def test_landscape_force_is_its_slope():
    task = wf.Task(np.ones((1, 1)), np.full(1, np.sqrt(20.0)))
    h = 1e-3
    found = wf.landscape(recurrent(4), task, temperature=1.0, values=[0.2 - h, 0.2, 0.2 + h, 0.5, 0.6])
    slope = (found.free_energy.values[2] - found.free_energy.values[0]) / (2 * h)
    np.testing.assert_allclose(slope, found.field.values[1], rtol=1e-4)


@pytest.mark.parametrize("make", [wf.RNN, wf.DNN])
def test_perturbation_is_right_to_its_order(make):
    """|H − H0 − H1 − H2| falls as the third power of the labels' kernel; dropping H2, as the second."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 2, 1))
    net, off = make(3, "linear", weight_variance=0.8), []
    for strength in (0.02, 0.01, 0.005):
        task = wf.Task(x, np.sqrt(strength) * y, supervised=(1, 2))
        found = wf.posterior(net, task, temperature=0.7, method="perturbative")
        exact = wf.posterior(net, task, temperature=0.7)
        parts = [found.hidden_terms.values[: k + 1].sum(axis=0) for k in range(3)]
        off.append([np.abs(part - exact.hidden.values).max() for part in parts])
        off[-1].append(np.abs(found.conjugate.values - exact.conjugate.values).max())
    orders = np.log2(np.array(off)[:-1] / np.array(off)[1:])[-1]
    np.testing.assert_allclose(orders, [1, 2, 3, 3], atol=0.1)


def test_the_propagator_reaches_unsupervised_states_only_when_weights_are_tied():
    """Labels at states 1 and 3, κ → 0, h0 = w = v = 1: 2Φ̃_{02} gets Σ_c A1_{1c} A1_{c3}, A1 the carried-back labels."""
    first, last = 0.3, 0.2
    task = wf.Task(np.ones((1, 1)), np.array([[[first], [last]]]), supervised=(1, 3))
    tied, untied = (
        wf.posterior(make(4, "linear"), task, temperature=1e-12, method="perturbative").propagator.values[..., 0, 0]
        for make in (wf.RNN, wf.DNN)
    )
    here, across, there = (
        first**2 + last**2,
        first * last,
        last**2,
    )  # A1 at (1, 1), to which (3, 3) is carried, (1, 3), (3, 3)
    np.testing.assert_allclose(2 * tied[0, 2], here * across + across * there, rtol=1e-6)
    assert untied[0, 2] == 0


@pytest.mark.parametrize("make", [wf.RNN, wf.DNN])
def test_the_propagator_is_that_of_the_page(make):
    """Entry by entry: (w/v²) Σ_c Y_{a+1,c} Y_{c,b+1}/(h_{a+1} h_c h_{b+1}) at κ → 0, with labels carried back along lags."""
    w, u, v, depth, labels = 0.7, 1.3, 1.6, 4, {1: 0.3, 3: 0.2}
    h = u * w ** np.arange(depth)
    Y = np.array([[labels.get(a, 0) * labels.get(b, 0) for b in range(depth)] for a in range(depth)])
    joined = lambda a, b: make is wf.RNN or a == b  # noqa: E731

    def carried(Q):
        A = Q.copy()
        for a in range(depth - 2, -1, -1):
            for b in range(depth - 2, -1, -1):
                A[a, b] += w * A[a + 1, b + 1] * joined(a, b)
        return A

    A = carried(Y / (v * np.outer(h, h)))
    path = np.zeros((depth, depth))
    for a in range(depth - 1):
        for b in range(depth - 1):
            path[a, b] = w * joined(a, b) * sum(A[a + 1, c] * h[c] * A[c, b + 1] for c in range(depth))
    net = make(depth, "linear", weight_variance=w, input_variance=u, readout_variance=v)
    task = wf.Task(np.ones((1, 1)), np.array([[[0.3], [0.2]]]), supervised=(1, 3))
    found = wf.posterior(net, task, temperature=1e-12, method="perturbative")
    np.testing.assert_allclose(2 * found.propagator.values[..., 0, 0], carried(path), rtol=1e-9, atol=1e-15)


def test_the_outlier_leaves_the_bulk_after_the_transition():
    """s = (5 + √17)/4, λ = 19.17 at κ̂ = 0; z² = 2s(s − 2)/(s − 1)."""
    outliers = []
    for strength in (19.1, 19.25, 40.0):
        task = wf.Task(np.ones((1, 1)), np.full(1, np.sqrt(strength)))
        found = wf.weight_outliers(wf.posterior(recurrent(4), task, temperature=TINY))
        s = oracle.coherent_stretch(strength, TINY)
        assert found.status is wf.Status.success and found.eigenvalue_imag[0] == 0
        np.testing.assert_allclose(found.eigenvalue_real[0], np.sqrt(2 * s * (s - 2) / (s - 1)), rtol=1e-8)
        outliers.append(int(found.outlier.sum()))
    assert outliers == [0, 1, 1]


def test_the_spectrum_recovers_a_teacher():
    """A rotation that is strong enough shows its eigenvalues exp(±iθ) times a stretch beyond the bulk."""
    task = wf.tasks.rotation(8, 4, 6, angle=0.9, seed=1)
    strong = wf.Task(task.x, 3 * task.y)
    found = wf.weight_outliers(wf.posterior(wf.RNN(6, "linear", weight_variance=0.2), strong, temperature=1e-3))
    angles = np.sort(np.abs(np.angle(oracle.eigenvalues(found)[found.outlier.values])))
    assert len(angles) == 2
    np.testing.assert_allclose(angles, 0.9, atol=0.05)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: wf.transition(recurrent(4), UNIT, temperature=1.0, along="width"), "along"),
        (lambda: wf.transition(recurrent(4), UNIT, temperature=0.0), "temperature"),
        (lambda: wf.landscape(recurrent(4), UNIT, temperature=1.0, along=(0, 3)), "along"),
        (lambda: wf.landscape(recurrent(4), UNIT, temperature=1.0, values=[0.0, 1.0]), "values"),
        (lambda: wf.posterior(recurrent(4), UNIT, temperature=1.0, method="perturbative", order=3), "order"),
        (lambda: wf.posterior(recurrent(4), UNIT, temperature=1.0, order=1), "order"),
        (lambda: wf.posterior(recurrent(4), UNIT, temperature=1.0, method="perturbative", branch="coherent"), "branch"),
        (lambda: wf.posterior(wf.RNN(3, "erf"), UNIT, temperature=1.0, method="perturbative"), "activation"),
        (lambda: wf.weight_outliers(wf.prior(recurrent(4), UNIT)), "solution"),
        (
            lambda: wf.weight_outliers(wf.posterior(recurrent(4), UNIT, temperature=1.0, method="perturbative")),
            "solution",
        ),
    ],
)
def test_bad_input(call, named):
    with pytest.raises(ValueError, match=f"`{named}`"):
        call()
