"""Functions that vary faster than the nodes of any fixed rule: right, or refused, and never silently wrong."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf
from widefield.gaussian import expectation

# The oracle: composite Gauss–Legendre rules in NumPy that know where each function is steep.

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def rule(center, deviation):
    """Nodes and weights of the standard normal density, panels doubling away from ``center`` (rows of centers)."""
    distance = np.concatenate([[0.0], 1e-7 * 2.2 ** np.arange(28)]) / deviation
    edges = np.concatenate([-distance[:0:-1], distance]) + np.asarray(center)[..., None] / deviation
    even = np.broadcast_to(np.linspace(-9, 9, 19), (*edges.shape[:-1], 19))
    edges = np.sort(np.clip(np.concatenate([edges, even], axis=-1), -9, 9), axis=-1)
    half, middle = np.diff(edges) / 2, (edges[..., 1:] + edges[..., :-1]) / 2
    z = (middle[..., None] + half[..., None] * NODES).reshape(*edges.shape[:-1], -1)
    w = (half[..., None] * WEIGHTS).reshape(z.shape) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return z, w


def exact(function, center, q, rho):
    """<φ(a)φ(b)> for two nodes of variance q."""
    s = np.sqrt(q)
    if function(np.array(np.pi)) == np.sin(np.pi / 0.02):  # the wave, which has a closed form
        return np.exp((rho - 1) * q / 0.02**2) / 2 - np.exp(-(rho + 1) * q / 0.02**2) / 2
    z, w = rule(center, s)
    if rho in (0.0, 1.0):
        return np.sum(w * function(s * z) ** 2) if rho else np.sum(w * function(s * z)) ** 2
    tau = np.sqrt(1 - rho**2)
    total = 0.0
    for part in np.array_split(np.arange(len(z)), 16):
        mean = rho * s * z[part]
        y, v = rule(center - mean, tau * s)
        total += np.sum(w[part] * function(s * z[part]) * np.sum(v * function(mean[:, None] + tau * s * y), axis=-1))
    return total


def made(center, xp, kind, scale):
    """The same function for NumPy and for JAX."""
    return {
        "step-like": lambda x: xp.tanh((x - center) / scale),
        "bump": lambda x: x + xp.exp(-(((x - center) / scale) ** 2)),
        "well": lambda x: xp.cos(x) - 1 / (1 + ((x - center) / scale) ** 2),
        "wave": lambda x: xp.sin(x / scale),
        "kink": lambda x: xp.abs(x - center),
        "jump": lambda x: xp.where(x > center, 1.0, scale),
        "root": lambda x: xp.sqrt(xp.abs(x - center)),
    }[kind]


CASES = [
    *[("step-like", c, s) for c, s in ((0.3, 1e-3), (0.0, 1e-3), (-2.0, 3e-2), (0.71, 1e-6), (5.0, 1e-2))],
    *[("bump", c, s) for c, s in ((0.7, 1e-1), (0.7, 1e-3), (0.3, 1e-5), (-1.37, 1e-4), (0.0, 1e-2))],
    ("well", 0.4, 1e-3),
    ("wave", 0.0, 0.02),
    ("kink", 0.3, 1.0), ("kink", 0.0, 1.0),
    ("jump", 0.3, 0.0), ("jump", 0.0, -1.0), ("jump", -4.0, 0.5),
    ("root", 0.0, 1.0), ("root", 0.2, 1.0),
]  # fmt: skip
ACCURATE = ("step-like", "bump", "well")
VARIANCES, CORRELATIONS = (1e-2, 1.0, 1e2), (0.0, 0.5, 1.0)


def answers(case):
    """(error, estimate, scale) of every pair that is answered, and how many are refused."""
    kind, center, scale = case
    activation = wf.Activation(made(center, jnp, kind, scale), name=f"{kind} {center} {scale}")
    found, refused = [], 0
    for q in VARIANCES:
        try:
            given = expectation(activation, q, q, np.multiply(CORRELATIONS, q))
        except wf.SolveError:
            refused += 1
            continue
        size = exact(made(center, np, kind, scale), center, q, 1.0)
        for rho, value, error in zip(CORRELATIONS, given.value, given.error, strict=True):
            off = abs(value - exact(made(center, np, kind, scale), center, q, rho))
            found.append((off, error, size))
    return found, refused


@pytest.mark.parametrize("case", CASES, ids=str)
def test_undeclared_steep_places(case):
    found, refused = answers(case)
    assert all(off <= error + 2e-14 * size for off, error, size in found), f"honest: {found}"  # roundings of the oracle
    if case[0] in ACCURATE:
        assert not refused and all(error <= 1e-10 * size for _, error, size in found), "accurate"
    if case[0] in ("kink", "jump", "root") and abs(case[1]) < 0.5:
        assert refused == len(VARIANCES), "the point has weight at every variance"


def test_a_refusal_names_the_point_and_declaring_it_helps():
    bent = wf.Activation(lambda x: jnp.abs(x - 0.3), name="bent")
    with pytest.raises(wf.SolveError, match=r"near x = 0\.3.*breaks"):
        expectation(bent, 1.0, 1.0, 0.5)
    declared = wf.Activation(lambda x: jnp.abs(x - 0.3), breaks=(0.3,))
    given = expectation(declared, 1.0, 1.0, 0.5)
    oracle = exact(lambda x: np.abs(x - 0.3), 0.3, 1.0, 0.5)
    assert abs(given.value - oracle) <= given.error <= 1e-10


def test_a_jump_of_a_lower_derivative_is_refused():
    """φ' of an undeclared step is zero wherever it is looked at; its delta function is not."""
    step = wf.Activation(lambda x: jnp.where(x > 0.3, 1.0, 0.0), name="step")
    with pytest.raises(wf.SolveError, match=r"near x = 0\.3"):
        expectation(step, 1.0, 1.0, 0.5, (1, 1))
    ramp = wf.Activation(lambda x: jnp.maximum(x, 0.3), name="ramp")
    with pytest.raises(wf.SolveError, match=r"near x = 0\.3"):
        expectation(ramp, 1.0, 1.0, 0.5, (2, 0))


def test_steep_and_broken_at_once():
    """A declared break and, elsewhere, a step that nobody declared."""
    function = lambda xp: lambda x: xp.maximum(x, 0) + xp.tanh(1e4 * (x - 0.7))  # noqa: E731
    activation = wf.Activation(function(jnp), breaks=(0.0,), name="both")
    given = expectation(activation, 1.3, 1.3, [1.3, -0.4])
    oracle = exact(function(np), 0.7, 1.3, 1.0)  # whose panels end at 0 too
    assert abs(given.value[0] - oracle) <= given.error[0] <= 1e-10
    mirrored = wf.Activation(lambda x: function(jnp)(-x), breaks=(0.0,), name="mirrored")
    again = expectation(mirrored, 1.3, 1.3, [1.3, -0.4])
    assert (abs(given.value - again.value) <= given.error + again.error).all()


@pytest.mark.parametrize("scale", [1e-3, 1e-5])
def test_the_prior_of_a_steep_activation(scale):
    """One hidden state: the readout is v<φφ>, whose claimed error covers the true one; duplicates included."""
    activation = wf.Activation(made(0.3, jnp, "step-like", scale), name="steep")
    x = np.array([[1.0, 0.4], [-0.3, 1.1], [1.0, 0.4]])
    solution = wf.prior(wf.DNN(1, activation, readout_variance=1.7), wf.Task(x), quantities=("output", "ntk"))
    q, function = (x**2).mean(axis=1), made(0.3, np, "step-like", scale)
    off = [
        abs(solution.output.values[i, j] / 1.7 - exact(function, 0.3, q[i], 1.0)) for i, j in ((0, 0), (1, 1), (0, 2))
    ]
    assert max(off) <= max(solution.certificate.error, 1e-12) and solution.certificate.error <= 1e-10
    assert any("not seen" in note for note in solution.notes)


def test_the_prior_refuses_what_nobody_declared():
    bent = wf.Activation(lambda x: jnp.abs(x - 0.3), name="bent")
    task = wf.Task(np.array([[1.0, 0.4], [-0.3, 1.1]]))
    with pytest.raises(wf.SolveError, match=r"0\.3"):
        wf.prior(wf.DNN(2, bent), task)
    assert wf.prior(wf.DNN(2, bent), task, throw=False).status is wf.Status.inaccurate


def test_named_activations_are_not_scanned(monkeypatch):
    from widefield.gaussian import steepness

    monkeypatch.setattr(steepness, "_shell", lambda *_: pytest.fail("a named activation was scanned"))
    expectation("tanh", 3.3, 0.7, 0.4)
    expectation("tanh", 300.0, 300.0, 299.99, (2, 1))


@pytest.mark.parametrize(
    "function, said",
    [
        (jnp.log, "finite"),
        (lambda x: x * jnp.nan, "finite"),
        (lambda x: jnp.full_like(x, jnp.inf), "finite"),
        (lambda x: x + 1j, "real"),
        (lambda x: x > 0, "real"),
        (lambda x: jnp.round(x).astype(int), "real"),
        (lambda x: x - jnp.mean(x), "entry by entry"),
    ],
)
def test_functions_that_are_not_functions(function, said):
    start = time.perf_counter()
    with pytest.raises(ValueError, match=f"`(activation|function)` must.*{said}"):
        expectation(wf.Activation(function, name="mine"), 1.0, 1.0, 0.5)
    with pytest.raises(ValueError, match=f"`(activation|function)` must.*{said}"):
        wf.prior(wf.DNN(2, wf.Activation(function, name="mine")), wf.Task(np.eye(2)))
    assert time.perf_counter() - start < 5
