"""Pictures of training runs: drawn for whatever fields and dims a theory or a simulation returns."""

import numpy as np
import pytest

import widefield as wf
from widefield.answer.certificate import Certificate, Check
from widefield.answer.solution import make_solution
from widefield.plot import dynamics as drawn

CHECKS = {"residual": Check(0.0, 1e-10)}
T, P, L = 6, 2, 3
RNG = np.random.default_rng(0)


def solution(fields, name="dynamics", y=True, network=None, **task):
    labels = RNG.normal(size=P) if y is True else y
    return make_solution(
        fields, Certificate(name, CHECKS), network or wf.DNN(L), wf.Task(np.ones((P, 4)), labels, **task)
    )


def run(front=(), kernel=("layer",), prediction=(), ntk=()):
    """Fields with ``front`` dims before all others; a size of 3 for everything that is not a step or a sample."""
    size = {"step": T, "step_": T, "at": 2, "at_": 2, "sample": P, "sample_": P, "output": 1}
    shape = lambda dims: tuple(size.get(d, 3) for d in dims)  # noqa: E731
    dims = {
        "loss": (*front, "step"),
        "prediction": (*front, "step", *prediction, "sample", "output"),
        "feature_kernel": (*front, *kernel, "step", "step_", "sample", "sample_"),
        "ntk": (*front, *ntk, "step", "sample", "sample_"),
    }
    return {name: (axes, RNG.uniform(size=shape(axes))) for name, axes in dims.items()}


@pytest.mark.parametrize("front", [(), ("replicate",)])
def test_a_run_has_four_panels(front):
    figure = solution(run(front), "simulate.dynamics" if front else "dynamics").plot()
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert [ax.get_title() for ax in panels] == ["loss", "prediction", "features", "tangent kernel at the end"]
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in panels)
    assert bool(panels[0].collections) == bool(front), "a tube where there are networks"


def test_the_label_drawn_is_that_of_the_state_drawn():
    fields = run(kernel=("state", "state_"), prediction=("state",), ntk=("readout", "readout_"))
    y = np.arange(P * 2.0).reshape(P, 2, 1)
    figure = solution(fields, y=y, network=wf.RNN(L), supervised=(2, 0)).plot()
    lines, crosses = figure.axes[1].lines[:-1:2], figure.axes[1].lines[1:-1:2]
    assert [line.get_ydata()[-1] for line in lines] == pytest.approx(fields["prediction"][1][-1, 2, :, 0])
    assert [float(cross.get_ydata()[0]) for cross in crosses] == [0.0, 2.0]


def test_features_are_equal_time_means_over_samples():
    values = RNG.uniform(size=(L, T, T, P, P))
    figure = solution({"feature_kernel": (("layer", "step", "step_", "sample", "sample_"), values)}).plot()
    expected = [np.mean([values[1, t, t, i, i] for i in range(P)]) for t in range(T)]
    assert figure.axes[0].lines[1].get_ydata() == pytest.approx(expected)


def test_rows_after_a_divergence_are_left_out():
    loss = np.array([1.0, 5.0, np.inf, np.inf])
    figure = solution({"loss": (("step",), loss), "test_loss": (("step",), loss)}).plot()
    assert np.isnan(figure.axes[0].lines[0].get_ydata()[2:]).all()
    assert len(drawn.pictures(solution({"loss": (("step",), loss)}))) == 1


@pytest.mark.parametrize("front", [(), ("replicate",)])
@pytest.mark.parametrize("layers", ["layer", "state"])
def test_alignments_have_a_panel(front, layers):
    values = RNG.uniform(size=(*[3] * len(front), L, T))
    fields = {"alignment": ((*front, layers, "step"), values), "ntk_alignment": ((*front, "step"), values[..., 0, :])}
    (panel,) = solution(fields, "simulate.dynamics" if front else "dynamics").plot().axes
    lines = [values[..., i, :].reshape(-1, T).mean(axis=0) for i in (0, 1, 2, 0)]
    np.testing.assert_allclose([line.get_ydata() for line in panel.lines], lines)
    assert panel.get_title() == "alignment with the labels" and panel.get_xlabel() and panel.get_ylabel()
