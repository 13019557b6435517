"""2·wide − narrow removes the 1/n offset."""

import numpy as np
import pytest

import widefield as wf

from .students import agrees

X = np.array([[0.6, -0.3, 1.0]])
NET = wf.RNN(3, "linear", weight_variance=1.4)


def run(net=NET, x=X, **changes):
    return wf.simulate.prior(net, wf.Task(x), **({"width": 8, "replicates": 10, "seed": 0} | changes))


def test_offset_is_removed():
    """⟨h⁰ · h²⟩/n of a linear recurrent network is w K/n: the limit is zero."""
    wide = run(width=8, replicates=20_000, seed=0)
    result = wf.simulate.extrapolate(wide, run(width=4, replicates=20_000, seed=1))
    assert not agrees(0.0, wide.hidden.values[:, 0, 2])
    assert agrees(0.0, result.hidden.values[:, 0, 2])
    assert result.hidden.dims == wide.hidden.dims and result.output.dims == wide.output.dims
    assert "draw" not in result.data and "draw" in result.certificate.left_out
    assert result.certificate.theory == "simulate.extrapolate" and result.certificate.options["wide_width"] == 8


def test_after_a_file(tmp_path):
    wide, narrow = run(), run(width=4, seed=1)
    direct = wf.simulate.extrapolate(wide, narrow)
    read = wf.simulate.extrapolate(*(wf.load(s.save(tmp_path / f"{i}.nc")) for i, s in enumerate((wide, narrow))))
    np.testing.assert_array_equal(direct.hidden, read.hidden)
    np.testing.assert_array_equal(direct.hidden, 2 * wide.hidden.values - narrow.hidden.values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 5}, "twice the width"),
        ({"seed": 0}, "different seeds"),
        ({"replicates": 9}, "replicates"),
        ({"net": wf.RNN(3, "linear", weight_variance=1.5)}, "same network"),
        ({"net": wf.RNN(3, "erf", weight_variance=1.4)}, "same network"),
        ({"x": X + 1}, "same task"),
        ({"quantities": "draw"}, "no field in common"),
    ],
)
def test_mismatches_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        wf.simulate.extrapolate(run(), run(**({"width": 4, "seed": 1} | change)))


def test_only_simulations():
    once = wf.simulate.extrapolate(run(), run(width=4, seed=1))
    with pytest.raises(ValueError, match="`wide`"):
        wf.simulate.extrapolate(once, run())
    with pytest.raises(ValueError, match="`narrow`"):
        wf.simulate.extrapolate(run(), 3)
