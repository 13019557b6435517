"""Pictures: drawn for whatever a solution holds, without touching matplotlib's global state, written whole."""

import os
import sys

import matplotlib
import numpy as np
import pytest
from PIL import Image

import widefield as wf
from widefield.answer.certificate import Certificate, Check
from widefield.answer.files import write_atomically
from widefield.answer.solution import make_solution
from widefield.plot import PICTURES, style

CHECKS = {"residual": Check(0.0, 1e-10)}
PAIRS = ("state", "state_", "sample", "sample_")


def covariance(n_states, n_samples):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n_states * n_samples, 40))
    K = (root @ root.T / 40).reshape(n_states, n_samples, n_states, n_samples)
    return K.transpose(0, 2, 1, 3)


def theory(fields, depth=3, name="prior"):
    return make_solution(fields, Certificate(name, CHECKS), wf.RNN(depth), None)


def panels_of(figure):
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>" and (ax.axison or ax.texts)]


@pytest.mark.parametrize(
    ("n_states", "n_samples", "n_panels"), [(3, 1, 2), (3, 2, 3), (31, 40, 3), (1, 5, 1), (1, 1, 1)]
)
def test_any_number_of_states_and_samples_is_drawn(n_states, n_samples, n_panels):
    figure = theory({"hidden": (PAIRS, covariance(n_states, n_samples))}, n_states).plot()
    panels = panels_of(figure)
    assert len(panels) == n_panels
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in panels)


def test_output_alone_and_ntk_over_several_states_are_drawn():
    K = covariance(2, 3)
    assert len(theory({"output": (PAIRS[2:], K[0, 0])}).plot().axes) == 2
    figure = theory({"output": (PAIRS[2:], K[0, 0]), "ntk": (PAIRS, K)}).plot()
    assert np.array_equal(figure.axes[1].images[0].get_array(), K[-1, -1])


def test_a_simulation_is_drawn_as_its_mean_with_a_tube():
    K = covariance(4, 1)
    samples = K + np.arange(5).reshape(-1, 1, 1, 1, 1)
    figure = theory({"hidden": (("replicate", *PAIRS), samples)}, 4).plot()
    line = figure.axes[0].lines[0]
    assert line.get_linestyle() == "None"
    assert line.get_ydata() == pytest.approx(np.diagonal(K[..., 0, 0]) + 2)
    assert len(figure.axes[0].collections) == 1
    assert figure.axes[1].images[0].get_array().data == pytest.approx(K[..., 0, 0] + 2)


def test_nothing_to_draw_is_said():
    with pytest.raises(ValueError, match="no picture for a solution with only names"):
        theory({"names": (("step",), np.array(["a", "b"]))}).plot()


def test_an_unknown_theory_gets_the_generic_picture():
    rng = np.random.default_rng(1)
    fields = {
        "energy": ((), 0.25),
        "energy_stderr": ((), 0.01),
        "branch": ((), "coherent"),
        "loss": (("step",), rng.random(5)),
        "loss_stderr": (("step",), np.full(5, 0.1)),
        "kernel": (("layer", "sample", "sample_"), rng.random((3, 2, 2))),
        "train_loss": (("replicate", "step"), rng.random((4, 5))),
        "long": (("step_", "sample"), rng.random((50, 2))),
    }
    words, loss, kernel, trained, long = panels_of(theory(fields, name="another theory").plot())
    assert [text.get_text() for text in words.texts] == ["energy", "0.25 ± 0.01", "branch", "coherent"]
    assert loss.lines[0].get_ydata() == pytest.approx(fields["loss"][1])
    assert (loss.get_xlabel(), len(loss.collections)) == ("step", 1)
    assert np.array_equal(kernel.images[0].get_array(), fields["kernel"][1][-1])
    assert "last layer" in kernel.get_title()
    assert trained.lines[0].get_ydata() == pytest.approx(fields["train_loss"][1].mean(axis=0))
    assert long.images[0].get_array().shape == (50, 2)


def test_a_prior_without_kernels_gets_the_generic_picture():
    (panel,) = panels_of(theory({"test_prediction": (("test",), np.arange(3.0))}).plot())
    assert panel.get_xlabel() == "test"


def test_the_picture_follows_the_theory_and_not_the_names():
    figure = theory({"hidden": (PAIRS, covariance(3, 2))}, name="another").plot()
    assert len(panels_of(figure)) == 1
    assert "another" not in PICTURES and {"prior", "simulate.prior", "depth_limit"} <= PICTURES.keys()


@pytest.mark.parametrize("net", [wf.DNN(3, "relu", weight_variance=3.0), wf.RNN(3, "erf", bias_variance=0.1)])
def test_a_depth_limit_is_written_out(net):
    limit = wf.depth_limit(net)
    (panel,) = panels_of(limit.plot())
    words = [text.get_text() for text in panel.texts]
    assert "critical weight variance" in words and str(limit.phase.values) in words


def test_an_extrapolation_is_drawn_as_what_it_extrapolates():
    runs = [wf.simulate.prior(wf.DNN(3), wf.Task(np.eye(2)), width=w, replicates=3, seed=w) for w in (8, 4)]
    figures = [s.plot() for s in (wf.simulate.extrapolate(*runs), runs[0])]
    assert [len(panels_of(figure)) for figure in figures] == [3, 3]


LOSS = np.geomspace(1, 0.1, 6)
RATES = (np.array([0.02, 0.03, 0.05]), np.full(3, 1e-3))


def test_training_curves_are_drawn_without_what_is_infinite_or_zero():
    loss = np.where(np.arange(6) < 4, LOSS, np.inf)
    fields = {
        "test_loss": (("step",), loss),
        "train_loss": (("step",), 0.5 * loss),
        "bias": (("step",), loss),
        "data_variance": (("step",), np.zeros(6)),
        "kernel": (("step",), loss),
        "error_correlation": (("step", "step_"), np.outer(LOSS, LOSS)),
    }
    losses, parts, kernel, _ = panels_of(theory(fields, name="proportional").plot())
    assert [len(ax.lines) for ax in (losses, parts, kernel)] == [2, 1, 1]
    assert np.isnan(losses.lines[0].get_ydata()).tolist() == [False] * 4 + [True] * 2
    assert losses.get_yscale() == "log"
    trial = {"test_loss": (("replicate", "step", "output"), np.stack([LOSS, 2 * LOSS])[..., None] * [1.0, 3.0])}
    (panel,) = panels_of(theory(trial, name="simulate.proportional").plot())
    assert panel.lines[0].get_ydata() == pytest.approx(1.5 * 2 * LOSS)
    assert len(panel.collections) == 1


def test_rates_and_exponents_are_drawn():
    rates, error = RATES
    sweep = {"test_loss": (("width_ratio", "rate", "step"), np.ones((2, 3, 4)))}
    best = {"optimal_rate": (("step",), rates), "optimal_rate_error": (("step",), error), "maximal_rate": ((), 0.1)}
    moved = {
        "optimal_rate": (("depth", "step"), np.ones((2, 3))),
        "optimal_rate_error": (("depth", "step"), np.ones((2, 3))),
    }
    moved |= {f"maximal_rate{x}": (("depth",), np.ones(2)) for x in ("", "_error")}
    moved |= {"drift": (("step",), rates), "drift_error": (("step",), np.array([np.inf, 1.0, 1.0]))}
    slope = {"test_loss": (("step",), LOSS), "exponent": (("octave",), np.ones(2))}
    slope |= {f"{x}_exponent": ((), 0.7) for x in ("depth", "printed", "lazy")}
    coords = {"rate": rates, "width_ratio": [1.0, np.inf], "depth": [2, 4], "octave_end": ("octave", [2, 5])}
    cases = {
        "rate_sweep": (sweep, ("rate", "width_ratio"), [2]),
        "optimal_rate": (best | {"sweep": (("rate", "step"), np.ones((3, 3)))}, ("rate",), [2, 1]),
        "rate_transfer": (moved, ("depth",), [2, 2]),
        "loss_exponent": (slope, ("octave_end",), [1, 4]),
    }
    for name, (fields, known, n_lines) in cases.items():
        given = {key: coords[key] for key in known}
        if name in ("optimal_rate", "rate_transfer"):
            given["step"] = [1, 4, 12]
        figure = make_solution(fields, Certificate(name, CHECKS), wf.DNN(2), None, coords=given).plot()
        assert [len(ax.lines) for ax in panels_of(figure)] == n_lines, name
        assert all(ax.get_xlabel() and ax.get_ylabel() for ax in panels_of(figure))


def test_a_third_kind_of_network_is_drawn(monkeypatch):
    monkeypatch.setattr(wf.Network, "kind", property(lambda self: "ResNet"))
    figure = theory({"hidden": (("replicate", *PAIRS), covariance(3, 2)[None])}).plot()
    assert figure.axes[0].lines[0].get_marker() == style.OTHER_MARKER


def test_matplotlib_is_left_as_it_was():
    before = dict(matplotlib.rcParams)
    theory({"hidden": (PAIRS, covariance(3, 2))}).plot()
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


def test_the_file_has_the_house_resolution_and_is_whole(tmp_path):
    path = tmp_path / "a.png"
    figure = theory({"hidden": (PAIRS, covariance(3, 2))}).plot(path)
    with Image.open(path) as image:
        assert image.size == tuple(round(inches * style.DPI) for inches in figure.get_size_inches())
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
    theory({"hidden": (PAIRS, covariance(3, 2))}).plot(tmp_path / "b.pdf")
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_text("old")

    def fail(descriptor, content):
        raise OSError("disk full")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_a_bad_path_is_named(tmp_path):
    solution = theory({"output": (PAIRS[2:], np.eye(2))})
    with pytest.raises(ValueError, match=r"\.png, \.pdf or \.svg"):
        solution.plot(tmp_path / "a.docx")
    with pytest.raises(ValueError, match="existing folder"):
        solution.plot(tmp_path / "missing" / "a.png")


def test_deep_and_recurrent_never_look_alike():
    assert style.COLORS["DNN"] != style.COLORS["RNN"]
    assert style.MARKERS["DNN"] != style.MARKERS["RNN"]
    assert len(set(style.SERIES)) == len(style.SERIES)
