"""Where the prior ends: memory, extreme variances, singular kernels, and the size of a residual."""

import subprocess
import sys
import time

import numpy as np
import pytest

import widefield as wf

RNG = np.random.default_rng(7)
X, Y, X_TEST = RNG.normal(size=(4, 3)), RNG.normal(size=4), RNG.normal(size=(2, 3))
TASK = wf.Task(X, Y, x_test=X_TEST)


@pytest.mark.parametrize("quantities", [None, "test_prediction", ("ntk", "output")])
def test_what_cannot_fit_is_refused_at_once_with_what_would(quantities):
    many = wf.Task(RNG.normal(size=(200_000, 2)), np.zeros(200_000), x_test=X_TEST[:, :2])
    start = time.perf_counter()
    with pytest.raises(MemoryError, match=r"GB.*About \d+ samples and \d+ test inputs would fit"):
        wf.prior(wf.DNN(3), many, quantities=quantities)
    assert time.perf_counter() - start < 1


PEAK = """
import sys, numpy as np, widefield as wf
from widefield.theories.prior import plan
peak = lambda: 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
n, n_test, quantities = int(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:])
rng = np.random.default_rng(0)
make = lambda n, t: wf.Task(rng.normal(size=(n, 3)), rng.normal(size=n), x_test=rng.normal(size=(t, 3)))
net = wf.DNN(1, "relu")
wf.prior(net, make(600, 600), noise=1.0, quantities=quantities)
before, task = peak(), make(n, n_test)
wf.prior(net, task, noise=1.0, quantities=quantities)
sizes = {}
plan.choose_quantities = lambda asked, found, budget: sizes.update(found) or (asked, ())
plan.make_plan(net, task, quantities, plan.make_regressions(1.0, None), 8)
print(peak() - before, sum(sizes[name] for name in quantities))
"""


@pytest.mark.parametrize(
    "case",
    [
        (3000, 10, "output", "log_evidence", "test_prediction"),
        pytest.param((500, 2500, "test_covariance"), marks=pytest.mark.full),
        pytest.param((5000, 10, "test_prediction", "log_evidence"), marks=pytest.mark.full),
        pytest.param((5000, 10, "ntk_prediction"), marks=pytest.mark.full),
    ],
)
def test_memory_is_what_was_predicted(case):
    run = subprocess.run([sys.executable, "-c", PEAK, *map(str, case)], capture_output=True, text=True, check=True)
    used, predicted = map(float, run.stdout.split())
    if "output" not in case and "test_covariance" not in case:
        assert used <= 2.5 * 8 * case[0] ** 2, "a kernel is factored where it stands"
    assert predicted / 1.5 <= used <= 1.5 * predicted, f"{used / 1e6:.0f} MB used, {predicted / 1e6:.0f} MB predicted"


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("value", [1e151, 1e300, 1.7e308])
@pytest.mark.parametrize("name", ["weight_variance", "input_variance", "bias_variance", "readout_variance"])
def test_huge_variances_are_refused_by_name(activation, name, value):
    """Without a warning, and without minutes of quadrature; tanh forgets the variance of its inputs."""
    call = lambda: wf.prior(wf.DNN(3, activation, **{name: value}), TASK, noise=0.1, throw=False)  # noqa: E731
    solution = call()
    assert solution.status in (wf.Status.nonfinite, wf.Status.not_psd)
    assert solution.status is wf.Status.not_psd or any("1e+150" in note for note in solution.notes)


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e-160])
@pytest.mark.parametrize("name", ["weight_variance", "input_variance", "bias_variance"])
def test_tiny_variances_are_nearly_zero(name, value):
    given, zero = (wf.prior(wf.DNN(3, "erf", **{"bias_variance": 0.3, name: v}), TASK, noise=0.1) for v in (value, 0.0))
    for field in ("output", "test_prediction", "log_evidence"):
        np.testing.assert_allclose(given.data[field], zero.data[field], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("option", ["throw", "progress"])
@pytest.mark.parametrize("value", [0, "yes", np.nan, (), 1j])
def test_flags_are_true_or_false(option, value):
    with pytest.raises(ValueError, match=f"`{option}`"):
        wf.prior(wf.DNN(2), TASK, **{option: value})


def test_many_test_inputs_cost_no_kernel_among_themselves():
    many = wf.Task(X, Y, x_test=RNG.normal(size=(20_000, 3)))
    start = time.perf_counter()
    some = wf.prior(wf.DNN(2, "erf"), many, noise=0.1, quantities="test_prediction")
    assert time.perf_counter() - start < 20 and some.test_prediction.shape == (2, 20_000, 1)
    few = wf.prior(wf.DNN(2, "erf"), wf.Task(X, Y, x_test=many.x_test[-2:]), noise=0.1, quantities="test_prediction")
    np.testing.assert_allclose(some.test_prediction[:, -2:], few.test_prediction, rtol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "erf", pytest.param("tanh", marks=pytest.mark.full)])
def test_ordinary_questions_are_not_refused(activation):
    """Fifty draws of one shape: inputs from 1e-3 to 1e3, duplicates and opposites, variances over decades."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(4, 3)) * 10 ** rng.uniform(-3, 3)
        x[3] = x[0] * rng.choice([1.0, -1.0, 0.5])
        names = ("weight_variance", "bias_variance", "input_variance", "readout_variance")
        variances = {name: 10 ** rng.uniform(-2, 0.5) for name in names}
        task = wf.Task(x, rng.normal(size=4), x_test=rng.normal(size=(2, 3)))
        solution = wf.prior(wf.DNN(3, activation, **variances), task, noise=10 ** rng.uniform(-2, 1), throw=False)
        assert solution.status is wf.Status.success, f"seed {seed}: {solution}"
        assert solution.residual <= 1e-10
