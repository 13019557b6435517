"""Gallery entries in miniature: files, numbers that follow from the data, and runs that can be taken up again."""

import importlib
import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import xarray as xr
from scipy.optimize import brentq

import widefield as wf
from widefield import gallery
from widefield.compare import Pair
from widefield.gallery import kit, points, record
from widefield.gallery.bauer import phases, sampling
from widefield.gallery.roberts import advice, recurrent
from widefield.gallery.segadlo import digits, fig_1, fig_2, fig_3
from widefield.plot.style import Figure

FEW = {"dimension": 24, "replicates": 6}
WIDE = {"width": 32, "replicates": 6}
FOUR = {"n_samples": 4, "dimension": 8, "rate": 0.02, "steps": 20}
SHORT = {"width": 32, "n_chains": 4, "steps": 10, "warmup": 10}
TINY = {
    "segadlo-1": dict(width=40, depth=4, n_networks=5, dimension=3, columns=(1, 3)),
    "segadlo-2": dict(widths=(8, 16), depths=(2, 3), depth=3, width=16, n_networks=20, n_realizations=2, n_inputs=3),
    "segadlo-3": dict(widths=(30, 60), depth=4, n_networks=5, dimension=3),
    "prior-regression": dict(n_train=(10, 15), n_test=12, n_splits=2, n_images=2, width=50, n_networks=4),
    "bauer-transition": dict(**SHORT, ratios=(0.3, 2.5), points=7, correlations=5),
    "bauer-endpoint": dict(**SHORT, depth=3),
    "bauer-convergence": dict(widths=(16, 32), depth=3, n_samples=2, dimension=3, n_chains=4, steps=10, warmup=10),
    "bauer-sequence": dict(
        **SHORT, depth=4, order=(0, 1, 3), n_labeled=3, n_supervised=(3,), n_samples=(2,), n_tasks=2, n_test=3
    ),
    "bauer-phases": dict(depths=(3,), temperatures=(1.0,), hottest=((3, 30.0),), n_points=4),
    "width-flow": dict(width=8, depth=3, n_networks=400, batches=8),
    "width-exact": dict(depth=4, tied_depth=3, n_networks=400, batches=8),
    "width-recurrent": dict(
        relu_width=8,
        erf_width=8,
        depth=3,
        n_networks=80,
        batches=4,
        fig_1_width=50,
        fig_1_networks=4,
        fig_3_widths=(50, 100),
        fig_3_networks=4,
        fig_depth=4,
    ),
    "width-advice": dict(depth=3, accuracies=(0.1,), checked=0.5, checked_depths=(2, 3), n_networks=16, batches=4),
    "bordelon25-1": dict(**FEW, depth=2, steps=6, width_ratios=(1.0,), depths=(1, 2)),
    "bordelon25-2": dict(
        **FEW, depth=2, steps=6, width_ratios=(1.0, 2.0), trained=(1.0,), fractions=(0.25, 0.5), rates=(0.01, 0.03)
    ),
    "bordelon25-3": dict(
        **FEW,
        depth=2,
        steps=6,
        data_ratios=(1.0,),
        grid=(0.5, 1.0),
        shown=(2, 6),
        batch_ratios=(1.0,),
        width_ratios=(1.0,),
    ),
    "bordelon25-4": dict(**FEW, depth=2, steps=7, richnesses=(1.0,), branches=(1.0,), depths=(1, 2), deepest=4),
    "bordelon25-5": dict(dimension=24, replicates=4, depths=(2, 3), steps=3, fractions=(0.25, 0.5), n_rates=8),
    "bordelon25-6": dict(depth=2, n_modes=20, steps=8, sizes=(8, 16), replicates=4),
    "bordelon25-7": dict(depth=2, steps=6, width_ratios=(1.0, 4.0), sampled=(1.0,), dimension=40, replicates=4),
    "bordelon25-8": dict(depths=(1, 2), steps=32, rates=(0.03, 0.01)),
    "bordelon25-cost": dict(
        steps=(4, 8), depth=2, depths=(2, 3), fixed_steps=4, widths=(20, 40), data=(20, 40), fixed_width=10, updates=2
    ),
    "bordelon22-1": dict(
        **WIDE, depth=2, richnesses=(1.0,), n_samples=4, steps=8, paths=256, widths=(16, 32), n_repeats=3
    ),
    "bordelon22-2": dict(**WIDE, **FOUR, depths=(1, 2), richnesses=(0.5,)),
    "bordelon22-3": dict(**WIDE, **FOUR, richnesses=(1.0, 2.0), paths=64),
    "bordelon22-4": dict(**WIDE, **FOUR, depth=2, richnesses=(0.5, 1.0)),
    "bordelon22-5": dict(
        width=8, replicates=3, depth=2, richnesses=(1.0,), n_train=8, n_test=6, batch=4, rate=0.4, steps=8, rows=4
    ),
    "bordelon22-6": dict(**WIDE, **FOUR, richnesses=(1.0, 2.0), paths=64),
    "bordelon22-7": dict(**WIDE, **FOUR, depth=2, richnesses=(1.0,), paths=256),
    "bordelon22-8": dict(**WIDE, richnesses=(1.0, 5.0)),
    "bordelon22-9": dict(**WIDE, **FOUR, depths=(2, 3)),
    "bordelon22-depth": dict(**WIDE, **FOUR, depths=(1, 2), richnesses=(0.5, 1.0)),
    "bordelon22-cost": dict(samples=(2, 3), steps=(4, 8), widths=(20, 40), paths=256, dimension=8),
    "coherence-dynamics": dict(**WIDE, steps=40, depths=(3,)),
}


def parameters(name):
    module = importlib.import_module(f"widefield.gallery.{gallery.ENTRIES[name].module}")
    return module.Parameters(**TINY[name])


class Made(dict):
    """Entries by name, each run when it is first asked for."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def __missing__(self, name):
        self[name] = gallery.ENTRIES[name].run(out=self.out, parameters=parameters(name))
        return self[name]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("figures"))


@pytest.mark.parametrize("name", TINY)
def test_an_entry_writes_picture_data_and_numbers(made, name):
    png, nc, numbers = made[name].files
    assert [path.name for path in made[name].files] == [f"{name}.png", f"{name}.nc", f"{name}.json"]
    assert png.read_bytes().startswith(b"\x89PNG")
    content = json.loads(numbers.read_text())
    assert content["status"] == "success"
    assert content["mode"] == "quick"
    assert content["parameters"].get("seed") == getattr(parameters(name), "seed", None)
    assert content["numbers"]
    sources = {"bauer": "Bauer", "bordelon25": "Bordelon", "width": "Roberts", "width-recurrent": "Segadlo"}
    sources |= {"bordelon22": "Bordelon", "coherence": "Bauer"}
    assert content["source"].startswith(sources.get(name, sources.get(name.split("-")[0], "Segadlo")))
    with xr.open_dataset(nc, engine="h5netcdf") as data:
        assert all(np.isfinite(data[field]).all() for field in data.data_vars if "nan" not in data[field].attrs)
    assert not list(png.parent.glob("*.part*"))
    assert name in str(made[name])


def test_every_entry_is_tested_here():
    assert set(TINY) == set(gallery.ENTRIES)


def test_full_parameters_are_the_published_ones():
    one, two, three = fig_1.FULL, fig_2.FULL, fig_3.FULL
    assert (one.width, one.depth, one.n_networks, one.dimension) == (2000, 31, 100, 100_000)
    assert (one.variance, one.bias_variance, one.columns) == (1.6, 0.2, (10, 30))
    assert (two.n_networks, two.n_realizations, two.n_inputs, two.dimension) == (2000, 40, 10, 4)
    assert (two.variances, two.depth, two.width, two.bias_variance, two.length) == ((1.6, 1.2), 16, 500, 0.2, 0.5)
    assert three.widths == (1000, 3000, 5000, 10_000)
    assert (three.depth, three.n_networks, three.variance) == (31, 100, 1.73)


def test_the_numbers_of_segadlo_1_follow_from_its_data(made):
    _, nc, numbers = made["segadlo-1"].files
    rows = {row["quantity"]: row for row in json.loads(numbers.read_text())["numbers"]}
    with xr.open_dataset(nc, engine="h5netcdf") as data:
        case = data.sel(kind="RNN", biases="tied", state_=3)
        z = wf.zscore(case.theory, case.simulation.transpose("replicate", "state"))
        deep = data.theory.sel(kind="DNN", biases="tied").values
    assert rows["C(a,3) RNN, static"]["z"] == pytest.approx(z[np.argmax(abs(z))])
    assert rows["C(a,3) RNN, static"]["z_rms"] == pytest.approx(np.sqrt(np.mean(z**2)))
    assert len(rows) == 12
    assert deep[np.triu_indices(4, 1)] == pytest.approx(0.2)  # tied biases are all that deep layers share


def test_one_readout_cannot_tell_deep_from_recurrent_and_many_can(made):
    content = json.loads(made["prior-regression"].files[2].read_text())
    rows = {row["quantity"]: row for row in content["numbers"]}
    assert rows["prediction RNN − DNN, last state"]["relative_error"] <= digits.SAME
    assert rows["prediction RNN − DNN, every state"]["relative_error"] > 1e-3
    errors = [row for row in content["numbers"] if row["quantity"] == "test error"]
    assert len(errors) == 2 * 2 * 2
    assert all(0 <= row["test_error"] <= 1 for row in errors)


def test_coherence_is_compared_with_closed_forms(made):
    """T = 4, κ̂ = 1: ρ² = s(s − 2)/(s − 1)² above λ_c, with λ = (4s(s − 1)² + 1)²/4s(s − 1)."""
    _, nc, numbers = made["bauer-transition"].files
    rows = {row["quantity"]: row for row in json.loads(numbers.read_text())["numbers"]}
    s = brentq(lambda s: (4 * s * (s - 1) ** 2 + 1) ** 2 / (4 * s * (s - 1)) - 2.5 * 81 / 8, 2, 10)
    for start in ("theory", "prior"):
        assert rows[f"ρ² RNN above λ_c, {start}"]["theory"] == pytest.approx(s * (s - 2) / (s - 1) ** 2)
        assert rows[f"N ρ² DNN, {start}"]["theory"] == 1
    with xr.open_dataset(nc, engine="h5netcdf") as data:
        assert float(data.found_critical) == pytest.approx(81 / 8)
        assert float(data.landscape.sel(shown_ratio=1.5).min()) < -1e-3
        assert float(data.landscape.sel(shown_ratio=0.5).min()) == 0
        assert data.fluctuation.values[0] == pytest.approx(2)  # no labels: s = 1


def test_weak_labels_leave_odd_lags_uncompared(made):
    rows = {row["quantity"]: row for row in json.loads(made["bauer-endpoint"].files[2].read_text())["numbers"]}
    assert [rows[f"H {case}"]["n_entries"] for case in ("RNN, weak", "DNN, weak", "RNN, strong")] == [4, 6, 6]
    assert "outlier |z|, strong" in rows and "outlier |z|, weak" not in rows


def test_coherence_and_similarity_stay_within_bounds(made):
    with xr.open_dataset(made["bauer-convergence"].files[1], engine="h5netcdf") as data:
        assert ((data.cka > 0) & (data.cka <= 1)).all()
        assert data.coherence.sel(lag=0).values == pytest.approx(1)
        first = np.trace(data.theory.values[0, 1]) / np.sqrt(
            np.prod([np.trace(data.theory.values[a, a]) for a in (0, 1)])
        )
        second = np.trace(data.theory.values[1, 2]) / np.sqrt(
            np.prod([np.trace(data.theory.values[a, a]) for a in (1, 2)])
        )
        assert float(data.coherence_theory.sel(lag=1)) == pytest.approx((first + second) / 2)


def test_deep_networks_predict_nothing_without_labels(made):
    with xr.open_dataset(made["bauer-sequence"].files[1], engine="h5netcdf") as data:
        assert np.abs(data.DNN_prediction.isel(state=2)).max() < 1e-9
        assert np.abs(data.RNN_prediction.isel(state=2)).max() > 0.1
        unseen = data.error_over_n_samples.sel(part="unsupervised")
        assert unseen.sel(kind="DNN").values == pytest.approx(1)
        assert (unseen.sel(kind="RNN") < 0.9).all()


def test_the_phase_diagram_has_the_known_lines(made):
    content = json.loads(made["bauer-phases"].files[2].read_text())
    assert all(row["relative_error"] < 1e-8 for row in content["numbers"])
    assert content["agrees"] is None
    with xr.open_dataset(made["bauer-phases"].files[1], engine="h5netcdf") as data:
        lines = data.by_temperature.sel(chosen=3)
        hot = data.grid.sel(chosen=3) > 56 / 3
        assert np.isfinite(lines).all("line").equals(hot)
        first, equal, last = (lines.sel(line=name)[hot] for name in phases.LINES)
    assert (last < equal).all() and (equal < first).all()


def test_exact_variances_at_small_depth(made):
    """Layer 2: 2/n and 5/n are exact; a product of two factors (1 + 5/n) at layer 3; hh of state 0 is a mean of squares."""
    with xr.open_dataset(made["width-exact"].files[1], engine="h5netcdf") as data:
        linear, relu = data.linear_exact.values, data.relu_exact.values
        assert linear[0] == pytest.approx([2 / 25, (1 + 4) / 25])  # K12 = 1/2
        assert relu[:2, 0] == pytest.approx([5 / 60, (1 + 5 / 60) ** 2 - 1])
        assert data.relu_leading.values[:, 0] == pytest.approx(np.arange(1, 4) * 5 / 60)
        assert data.tied_linear_exact.values[0, 0] == pytest.approx(2 / 25)
        assert (data.tied_linear_exact[1:] > data.tied_linear_leading[1:]).all()


def test_odd_recurrent_networks_fluctuate_as_deep_ones(made):
    """Fresh biases, input at state 0: equal states do not feel the tying."""
    with xr.open_dataset(made["width-recurrent"].files[1], engine="h5netcdf") as data:
        for name in recurrent.QUANTITIES:
            deep, tied = (data[name].sel(activation="erf", kind=kind).values for kind in ("DNN", "RNN"))
            assert tied == pytest.approx(deep, abs=1e-10)
        relu = data.sel(activation="relu", a=2)
        assert float(relu.vertex.sel(kind="RNN, static")) > float(relu.vertex.sel(kind="DNN"))
        assert data.correction.sel(activation="relu", kind="DNN").values == pytest.approx(0, abs=1e-10)


def test_advice_follows_the_spread(made):
    with xr.open_dataset(made["width-advice"].files[1], engine="h5netcdf") as data:
        deep = data.sel(case="relu, deep")
        assert deep.spread.values == pytest.approx([5, 10])
        assert deep.advised.values.tolist() == [20, 40]  # half of the kernel: 5/n = 1/4
        assert (data.promised <= 0.25).all()
    assert advice.needed(5.0, 0.5) == 20 and advice.needed(5.01, 0.5) == 21


def test_the_parameterizations_meet_where_width_is_dimension(made):
    with xr.open_dataset(made["bordelon25-1"].files[1], engine="h5netcdf") as data:
        assert data.ntk_test_loss.values == pytest.approx(data.mup_test_loss.values, rel=1e-12)
        assert data.deep_test_loss.sel(depth=2).values == pytest.approx(data.mup_test_loss.values[0], rel=1e-12)
        assert data.deep_test_loss.values[:, 0] == pytest.approx(1 + 1 / 2.0**2)  # 1 + 1/(ν γ0²)
        assert not data.ntk_test_loss_sampled.equals(data.mup_test_loss_sampled), "replicates of their own"
    content = json.loads(made["bordelon25-1"].files[2].read_text())
    assert any("rejected in" in note for note in content["notes"])
    assert [row["n_replicates"] for row in content["numbers"]] == [6] * 4


def test_two_layers_follow_the_closed_form(made):
    """√(1 + γ0²) is the kernel along labels of length 1 at the end, H(∞) of Appendix F.1."""
    content = json.loads(made["bordelon22-8"].files[2].read_text())
    exact = [row for row in content["numbers"] if "closed form" in row["quantity"]]
    assert len(exact) == 4
    assert all(row["relative_error"] < 1e-4 for row in exact)
    with xr.open_dataset(made["bordelon22-8"].files[1], engine="h5netcdf") as data:
        assert data.kernel_flow.isel(step=-1).values == pytest.approx(np.sqrt([2, 26]), rel=1e-3)


def test_random_deep_networks_have_equal_kernels_in_every_layer(made):
    with xr.open_dataset(made["bordelon22-2"].files[1], engine="h5netcdf") as data:
        first = data.deep_feature.sel(depth=2, at=0)
        assert first.values == pytest.approx(np.stack([first.values[0]] * 2))
        assert np.diagonal(first.values[0]) == pytest.approx(1)
        assert data.deep_gradient_trace.sel(depth=2, at=0, at_=0).values == pytest.approx(1)
        assert (data.deep_loss.sel(step=20, depth=2) < data.deep_loss.sel(step=20, depth=1)).all()
    rows = json.loads(made["bordelon22-2"].files[2].read_text())["numbers"]
    assert [row["n_replicates"] for row in rows] == [6] * 9


def test_only_tied_weights_become_coherent_under_weight_decay(made):
    """ln(1 + (K−2)ηλ)/ηλ is the growth rate in units of λ; deep networks keep states 1 and 2 at right angles."""
    with xr.open_dataset(made["coherence-dynamics"].files[1], engine="h5netcdf") as data:
        assert data.rate.values == pytest.approx(data.rate_expected.values, rel=0.01)
        later = data.coherence.sel(link="ρ23", fine=40)
        assert later.sel(kind="DNN").values == pytest.approx(0, abs=1e-12)
        decayed, plain = (float(later.sel(kind="RNN", protocol=name)) for name in ("weight decay", "plain descent"))
        assert decayed > plain > 0.3


def test_chains_that_do_not_mix_are_named():
    net, task = sampling.linear("RNN", 3), sampling.endpoint(20.0)
    options = {"width": 16, "seed": 0, "quantities": ("hidden",), "start": "prior"}
    long, short = sampling.Sampling(n_chains=2, steps=8, warmup=0), sampling.Sampling(n_chains=2, steps=2, warmup=0)
    trials = [(name, sampling.trained(p, net, task, **options)) for name, p in (("long", long), ("short", short))]
    worst = max(trials[0][1].certificate.diagnostics["r_hat"].values())
    notes = sampling.mixing(trials)
    assert f"{worst:.3f}" in notes[0]
    assert any("long: chains had not mixed" in note for note in notes) == (worst > sampling.R_HAT_LIMIT)
    assert any("short: chains too short" in note for note in notes)
    hidden = trials[0][1].hidden
    pair = Pair("H", hidden.mean("replicate"), hidden)  # z = 0: agrees, were it not for the chains
    assert [row.agrees for row in sampling.verdicts([pair], trials)] == [None]


def test_an_interrupted_run_is_taken_up_with_identical_numbers(tmp_path, monkeypatch):
    entry, tiny = gallery.ENTRIES["segadlo-2"], parameters("segadlo-2")
    n_jobs = tiny.n_realizations * len(fig_2.all_marks(tiny))
    calls = []
    plain = fig_2.distance
    monkeypatch.setattr(fig_2, "distance", lambda *a: calls.append(a) or plain(*a))

    def stop_at_ninth(done, total, what):
        if len(calls) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        entry.run(full=True, out=tmp_path, parameters=tiny, report=stop_at_ninth)
    store = tmp_path / "segadlo-2.points.jsonl"
    assert len(store.read_text().splitlines()) == 9
    with store.open("a") as file:
        file.write('{"key": {"widef')  # as if the machine had stopped in the middle of a line

    result = entry.run(full=True, out=tmp_path, parameters=tiny)
    assert len(calls) == n_jobs, "no point is computed twice"
    assert any("9 of" in note for note in result.notes)
    whole = entry.run(full=True, out=tmp_path / "whole", parameters=tiny)
    with (
        xr.open_dataset(result.files[1], engine="h5netcdf") as a,
        xr.open_dataset(whole.files[1], engine="h5netcdf") as b,
    ):
        assert a.identical(b)
    entry.run(full=True, out=tmp_path, parameters=tiny)
    assert len(calls) == 2 * n_jobs, "a finished run is not computed again"
    entry.run(full=True, out=tmp_path, parameters=replace(tiny, n_networks=21))
    assert len(calls) == 3 * n_jobs, "other parameters are other points"


def test_places_against_the_papers_order_are_named(made):
    content = json.loads(made["segadlo-2"].files[2].read_text())
    against = [row for row in content["numbers"] if row["RNN"]["mmd2"] < row["DNN"]["mmd2"]]
    (note,) = [note for note in content["notes"] if "against the paper's order" in note] or [""]
    assert note.count("z = ") == len(against)
    assert min(fig_2.QUICK.widths) == min(fig_2.FULL.widths) == 10


def test_a_quick_run_never_uses_old_points(made):
    assert not list(made["segadlo-2"].files[0].parent.glob("*.jsonl"))


def test_stored_points_survive_a_cut_line(tmp_path):
    path = tmp_path / "p.jsonl"
    store = points.Points(path)
    store.add({"n": 1}, 0.1)
    path.write_text(path.read_text() + '{"key"')
    again = points.Points(path)
    again.add({"n": 2}, 0.2)
    assert points.Points(path).values == {'{"n": 1}': 0.1, '{"n": 2}': 0.2}


def test_a_point_may_be_any_json(tmp_path):
    path = tmp_path / "p.jsonl"
    store = points.Points(path)
    value = {"loss": [[0.1, np.inf], [1 / 3, np.nan]], "branch": "coherent", "pair": (1, 2)}
    store.add({"n": 1}, value)
    for read in (store, points.Points(path)):
        stored = read.get({"n": 1})
        assert stored["pair"] == [1, 2] and stored["branch"] == "coherent"
        np.testing.assert_array_equal(stored["loss"], value["loss"])
    with pytest.raises(ValueError, match="None"):
        store.add({"n": 2}, None)
    with pytest.raises(TypeError, match="JSON"):
        store.add({"n": 2}, np.ones(2))
    assert store.get({"n": 2}) is None


def test_infinite_parameters_are_written(tmp_path):
    @dataclass(frozen=True)
    class Ratios:
        ratios: tuple = (1.0, np.inf, -np.inf)
        noise: float = np.nan
        widths: np.ndarray = field(default_factory=lambda: np.arange(2))

    drawn = record.Made(Figure(), xr.Dataset({"x": 1.0}), Ratios(), [{"ratio": np.float64(np.inf)}], [("a",)])
    words = {"title": "", "source": "", "full": False, "wall_time": 1.0}
    result = record.store("ratios", drawn, tmp_path, **words)
    content = json.loads(result.files[2].read_text())
    assert content["parameters"] == {"ratios": [1.0, "inf", "-inf"], "noise": "nan", "widths": [0, 1]}
    assert content["numbers"] == [{"ratio": "inf"}]


def test_an_unknown_name_meets_its_nearest():
    with pytest.raises(ValueError, match="Did you mean .*segadlo-1.* It has: segadlo-1, segadlo-2"):
        gallery.find("segadlo1")
    with pytest.raises(ValueError, match="no entry 'zzz'. It has"):
        gallery.find("zzz")


def test_every_entry_is_one_line_of_the_table_and_imports_when_it_runs():
    assert list(gallery.ENTRIES) == [entry.name for entry in gallery.ENTRIES.values()]
    for entry in gallery.ENTRIES.values():
        module = importlib.import_module(f"widefield.gallery.{entry.module}")
        assert isinstance(module.QUICK, module.Parameters) and isinstance(module.FULL, module.Parameters)


def test_a_family_measures_theory_networks_and_a_wrong_theory():
    class Line(kit.Experiment):
        suffix, wrong_theory, first_seed, note = "steeper", "a steeper line", 7, "points"

        def theory(self, question):
            return xr.Dataset({"y": ("x", question * np.arange(3.0))})

        def sampled(self, question, seed):
            noise = 1e-3 * np.random.default_rng(seed).normal(size=(8, 3))
            return xr.Dataset({"y": (("replicate", "x"), question * np.arange(3.0) + noise)})

        def wrong(self, question):
            return 1.5 * question

        def compared(self, field, parts):
            return field, parts

    families = (kit.Family("line", "slope", "slope {}", ("y",), {1.0: 1.0, 2.0: 2.0}),)
    words = []
    data = kit.measure(families, Line(), words.append)
    assert words == ["line, slope 1", "line, slope 2"]
    assert set(data) == {"line_y", "line_y_steeper", "line_y_sampled"}
    panels = [[lambda ax, data, p: kit.curves(ax, data, "line_y", "slope", "s")]]
    made = kit.tested(panels, data, None, Line(), lambda d: kit.pairs(d, families, Line()), size=(2, 2))
    assert made.agrees and [row["quantity"] for row in made.numbers] == ["y slope 1", "y slope 2"]
    assert made.notes == ("points", "a steeper line is rejected in 2 of 2 rows")
    assert made.figure.axes[0].get_legend_handles_labels()[1] == ["$s=1$", "$s=2$"]


def test_powers_are_fitted_and_drawn():
    x = np.array([1.0, 2.0, 4.0])
    assert kit.fitted_power(x, 3 * x**-1.5) == pytest.approx(-1.5)
    ax = Figure().subplots()
    kit.power_fit(ax, x, 12.0, 2, through=1)
    assert ax.lines[0].get_ydata() == pytest.approx([3, 12, 48])


def test_cases_are_combined_in_the_order_given():
    words = []
    data = kit.over({"kind": ("b", "a"), "n": (2, 1)}, lambda i, kind, n: xr.Dataset({"i": i, "n_": n}), words.append)
    assert data.i.values.tolist() == [[0, 1], [2, 3]] and words[0] == "kind b, n 2"
