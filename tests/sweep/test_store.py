"""A folder of points: a sweep that was killed goes on from there, to the same bits."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time

import pytest

import widefield as wf
from tests.sweep.question import NET, OVER, TASK, elsewhere, here
from widefield.sweep import call as calls

N_POINTS = 12


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted sweep and its store."""
    folder = tmp_path_factory.mktemp("whole") / "points"
    return here(store=folder), folder


@pytest.fixture
def store(whole, tmp_path):
    return shutil.copytree(whole[1], tmp_path / "points")


@pytest.fixture
def asked(monkeypatch):
    """What is asked, point by point."""
    points, plain = [], calls.ask
    monkeypatch.setattr(calls, "ask", lambda question, changes: points.append(changes) or plain(question, changes))
    return points


def test_every_point_is_a_file_that_can_be_read(whole):
    answer, folder = whole
    files = sorted(folder.glob("*.nc"))
    assert len(files) == N_POINTS and len(list(folder.iterdir())) == N_POINTS + 1
    points = [wf.load(file) for file in files]
    assert {(float(p.network.weight_variance), p.certificate.options["noise"]) for p in points} == {
        (variance, noise) for variance in OVER["network.weight_variance"] for noise in OVER["noise"]
    }
    assert answer.data.identical(here().data), "the same with and without a store"


def test_a_finished_sweep_is_opened_without_work(whole, store, asked):
    again = here(store=store)
    assert not asked and again.data.identical(whole[0].data)
    assert any("12 of 12 points were in the store" in note for note in again.notes)


def test_values_may_be_added(store, asked):
    over = {**OVER, "noise": [0.2, *OVER["noise"]]}
    answer = wf.sweep("prior", NET, TASK, over=over, store=store)
    assert len(asked) == 3 and {point["noise"] for point in asked} == {0.2}
    assert answer.data.identical(wf.sweep("prior", NET, TASK, over=over).data)


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "empty"])
def test_a_damaged_point_is_made_again(whole, store, asked, damage):
    first, second = sorted(store.glob("*.nc"))[:2]
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 1
    first.write_bytes({"cut": content[:1000], "flipped": content, "other": second.read_bytes(), "empty": b""}[damage])
    again = here(store=store)
    assert len(asked) == 1 and again.data.identical(whole[0].data)
    assert any("damaged file in the store was made again" in note for note in again.notes)
    assert here(store=store) and len(asked) == 1


def test_a_store_of_another_question_is_refused(store, asked, tmp_path):
    other = wf.DNN(3, "relu", weight_variance=1.4, bias_variance=0.1)
    with pytest.raises(ValueError, match="`store`.*another question: its network.depth is 2, this one's is 3"):
        wf.sweep("prior", other, TASK, over=OVER, store=store)
    with pytest.raises(ValueError, match="`store`.*another question: its task.x is 'float64"):
        wf.sweep(
            "prior", NET, wf.Task(TASK.x + 1, TASK.y, x_test=TASK.x_test, y_test=TASK.y_test), over=OVER, store=store
        )
    with pytest.raises(ValueError, match="`store`.*another question: its swept is"):
        wf.sweep("prior", NET, TASK, over={"noise": [0.1]}, store=store)
    (store / "question.json").write_text("{")
    with pytest.raises(ValueError, match="`store` is damaged: .*question.json"):
        here(store=store)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").touch()
    with pytest.raises(ValueError, match="`store` must be an empty folder or that of a sweep"):
        here(store=tmp_path / "used")
    with pytest.raises(ValueError, match="`store`.*cannot be used"):
        here(store=tmp_path / "used" / "thesis.tex")
    assert not asked


def test_failed_points_are_asked_again_on_request_alone(tmp_path, asked):
    over = {"network.weight_variance": [1.0, 1e200]}
    for retry, n in ((False, 2), (False, 2), (True, 3)):
        answer = wf.sweep("prior", NET, TASK, over=over, store=tmp_path, retry=retry)
        assert len(asked) == n and answer.data.status.values.tolist() == ["success", "nonfinite"]
        assert "overflow" in answer.data.message.values[1]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json", ".nc"]


def until_more(alive, points, n=3):
    """Until a few points more are there than when it began."""
    count = lambda: len(list(points.glob("*.nc")))  # noqa: E731
    begun = count()
    while alive() and count() < begun + n:
        time.sleep(0.001)


@pytest.mark.skipif(os.name != "posix", reason="no SIGKILL")
def test_a_killed_sweep_goes_on(whole, tmp_path):
    process = elsewhere(tmp_path)
    until_more(lambda: process.poll() is None, tmp_path / "points")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 3 <= len(list(tmp_path.glob("points/*.nc"))) < N_POINTS
    process = elsewhere(tmp_path)
    _, words = process.communicate()
    assert process.returncode == 0, words
    assert wf.load(tmp_path / "answer.nc").data.identical(whole[0].data)
    assert len(list(tmp_path.glob("points/*.nc"))) == N_POINTS


@pytest.mark.full
@pytest.mark.skipif(os.name != "posix", reason="no SIGKILL")
def test_twenty_kills_at_random(whole, tmp_path):
    """Some before a new point is there, most within or between two points; a server forks processes that have imported."""
    rng, context = random.Random(0), multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.sweep.question", "widefield.sweep.call", "widefield.theories.prior"])
    counts = [0]
    for _ in range(20):
        process = context.Process(target=here, kwargs={"store": tmp_path})
        process.start()
        until_more(process.is_alive, tmp_path, rng.choice([0, 1, 1]) if counts[-1] < N_POINTS - 1 else 0)
        time.sleep(rng.choice([0.0, 0.003, 0.01, 0.03, 1.0]) * rng.random())
        process.kill()
        process.join()
        counts.append(len(list(tmp_path.glob("*.nc"))))
    assert counts == sorted(counts) and len(set(counts)) > 5, "kills fall into the sweep"
    assert here(store=tmp_path).data.identical(whole[0].data)
    assert len(list(tmp_path.glob("*.nc"))) == N_POINTS and not list(tmp_path.glob("*.json"))[1:]


def test_an_interrupt_ends_it_at_once_and_leaves_the_store_whole(whole, tmp_path):
    process = elsewhere(tmp_path, progress=True)
    until_more(lambda: process.poll() is None, tmp_path / "points")
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, words = process.communicate()
    assert process.returncode != 0 and words.rstrip().endswith("KeyboardInterrupt")
    assert time.monotonic() - begun < 20
    assert here(store=tmp_path / "points").data.identical(whole[0].data)


def test_a_users_function_is_known_by_its_values(tmp_path):
    net = wf.DNN(2, wf.Activation(lambda z: z, name="mine"))
    wf.sweep("prior", net, TASK, over={"noise": [0.1]}, store=tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "question.json").read_text())
    assert manifest["network.activation.name"] == "mine" and manifest["network.activation.function.values"][0] == -3
