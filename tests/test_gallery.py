"""Gallery entries in miniature: files, numbers that follow from the data, and runs that can be taken up again."""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import xarray as xr

import widefield as wf
from widefield import gallery
from widefield.gallery import points, prior_regression, record, segadlo_1, segadlo_2, segadlo_3

TINY = {
    "segadlo-1": segadlo_1.Parameters(width=40, depth=4, n_networks=5, dimension=3, columns=(1, 3)),
    "segadlo-2": segadlo_2.Parameters(
        widths=(8, 16), depths=(2, 3), depth=3, width=16, n_networks=20, n_realisations=2, n_inputs=3
    ),
    "segadlo-3": segadlo_3.Parameters(widths=(30, 60), depth=4, n_networks=5, dimension=3),
    "prior-regression": prior_regression.Parameters(
        n_train=(10, 15), n_test=12, n_splits=2, n_images=2, width=50, n_networks=4
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("figures")
    return {name: gallery.ENTRIES[name].run(out=out, parameters=TINY[name]) for name in TINY}


@pytest.mark.parametrize("name", TINY)
def test_an_entry_writes_picture_data_and_numbers(made, name):
    png, nc, numbers = made[name].files
    assert [path.name for path in made[name].files] == [f"{name}.png", f"{name}.nc", f"{name}.json"]
    assert png.read_bytes().startswith(b"\x89PNG")
    content = json.loads(numbers.read_text())
    assert content["status"] == "success"
    assert content["mode"] == "quick"
    assert content["parameters"]["seed"] == TINY[name].seed
    assert content["numbers"]
    assert content["source"].startswith("Segadlo")
    with xr.open_dataset(nc, engine="h5netcdf") as data:
        assert all(np.isfinite(data[field]).all() for field in data.data_vars)
    assert not list(png.parent.glob("*.part"))
    assert name in str(made[name])


def test_every_entry_is_tested_here():
    assert set(TINY) == set(gallery.ENTRIES)


def test_full_parameters_are_the_published_ones():
    one, two, three = segadlo_1.FULL, segadlo_2.FULL, segadlo_3.FULL
    assert (one.width, one.depth, one.n_networks, one.dimension) == (2000, 31, 100, 100_000)
    assert (one.variance, one.bias_variance, one.columns) == (1.6, 0.2, (10, 30))
    assert (two.n_networks, two.n_realisations, two.n_inputs, two.dimension) == (2000, 40, 10, 4)
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
    assert rows["prediction RNN − DNN, last state"]["relative_error"] <= prior_regression.SAME
    assert rows["prediction RNN − DNN, every state"]["relative_error"] > 1e-3
    errors = [row for row in content["numbers"] if row["quantity"] == "test error"]
    assert len(errors) == 2 * 2 * 2
    assert all(0 <= row["test_error"] <= 1 for row in errors)


def test_an_interrupted_run_is_taken_up_with_identical_numbers(tmp_path, monkeypatch):
    entry, tiny = gallery.ENTRIES["segadlo-2"], TINY["segadlo-2"]
    n_jobs = tiny.n_realisations * len(segadlo_2.all_points(tiny))
    calls = []
    plain = segadlo_2.distance
    monkeypatch.setattr(segadlo_2, "distance", lambda *a: calls.append(a) or plain(*a))

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
    assert min(segadlo_2.QUICK.widths) == min(segadlo_2.FULL.widths) == 10


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
        found = read.get({"n": 1})
        assert found["pair"] == [1, 2] and found["branch"] == "coherent"
        np.testing.assert_array_equal(found["loss"], value["loss"])
    with pytest.raises(ValueError, match="None"):
        store.add({"n": 2}, None)
    with pytest.raises(TypeError, match="JSON"):
        store.add({"n": 2}, np.ones(2))
    assert store.get({"n": 2}) is None


def test_infinite_parameters_are_written(tmp_path, made):
    @dataclass(frozen=True)
    class Ratios:
        ratios: tuple = (1.0, np.inf, -np.inf)
        noise: float = np.nan
        widths: np.ndarray = field(default_factory=lambda: np.arange(2))

    with xr.open_dataset(made["segadlo-3"].files[1], engine="h5netcdf") as data:
        drawn = record.Made(segadlo_3.draw(data), data, Ratios(), [{"ratio": np.float64(np.inf)}], [("a",)])
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
