"""Many workers: the same bits for any number of them, and nothing is lost with one that dies."""

import os
import signal
import sys
import threading
import time

import psutil
import pytest

import widefield as wf
from tests.sweep.question import NET, OVER, TASK, elsewhere, here
from widefield.sweep import workers as many

distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="processes of dask.distributed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def client():
    """A client whose workers are threads of this process: quick to start."""
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        yield client


def computing():
    """The processes on this machine that compute for this one."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def test_a_worker_that_is_killed_loses_nothing(tmp_path):
    """Two processes, one of which is killed when the first point is there; a point stays for as long as any sweep asks it."""
    killed = []

    def kill():
        while not list(tmp_path.glob("points/*.nc")):
            time.sleep(0.01)
        victim = computing()[0]
        victim.kill()
        killed.append(victim.pid)

    thread = threading.Thread(target=kill)
    thread.start()
    answer = here(workers=2, store=tmp_path / "points")
    thread.join()
    assert killed and answer.data.identical(here().data)
    assert len(list(tmp_path.glob("points/*.nc"))) == 12 and not computing()


def test_any_client_gives_the_same_bits(client, tmp_path):
    answer = here(client=client, store=tmp_path)
    assert answer.data.identical(here().data) and answer.status is wf.Status.success
    assert here(client=client, store=tmp_path).data.identical(answer.data)
    failed = wf.sweep("prior", NET, TASK, over={"noise": [-1.0, 0.1]}, client=client)
    assert failed.data.status.values.tolist() == ["refused", "success"]


def test_a_point_that_cannot_be_asked_is_an_error(client, monkeypatch):
    monkeypatch.setattr(many, "ask", lambda question, changes: 1 / 0)
    with pytest.raises(wf.SolveError, match="ZeroDivisionError.*no point of the sweep has an answer"):
        wf.sweep("prior", NET, TASK, over={"noise": [0.2, 0.3]}, client=client)


def test_a_client_without_workers_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(many, "PATIENCE", 0.5)
    monkeypatch.setattr(many, "LOOK", 0.1)
    options = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as alone,
        pytest.raises(RuntimeError, match="`client` has had no workers.*finished points are kept"),
    ):
        here(client=alone, store=tmp_path)
    with pytest.raises(ValueError, match="`client` is closed: it must be connected"):
        here(client=alone)


def test_a_client_that_is_closed_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(many, "LOOK", 0.1)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options) as cluster:
        own = distributed.Client(cluster, set_as_default=False)
        plain = many._result

        def close_after_the_third(future, client):
            point = plain(future, client)
            if len(list(tmp_path.glob("*.nc"))) == 3:
                client.close()
            return point

        monkeypatch.setattr(many, "_result", close_after_the_third)
        with pytest.raises(RuntimeError, match="`client` is clos.*finished points are kept"):
            here(client=own, store=tmp_path)
    assert len(list(tmp_path.glob("*.nc"))) == 4
    assert here(store=tmp_path).data.identical(here().data)


def test_client_and_workers_exclude_each_other(client):
    with pytest.raises(ValueError, match="`client` or `workers`, not both"):
        here(client=client, workers=2)


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "widefield.sweep.processes", raising=False)
    monkeypatch.delattr(sys.modules["widefield.sweep"], "processes", raising=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"`workers` needs dask.distributed: pip install 'widefield\[cluster\]'"):
        wf.sweep("prior", NET, TASK, over=OVER, workers=1)
    with pytest.raises(ValueError, match="`client` must be a dask.distributed.Client"):
        wf.sweep("prior", NET, TASK, over=OVER, client=object())


@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_started_them(tmp_path, how):
    process = elsewhere(tmp_path, workers=2)
    while process.poll() is None and not list(tmp_path.glob("points/*.nc")):
        time.sleep(0.01)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    process.communicate(timeout=60)
    assert started and not psutil.wait_procs(started, timeout=60)[1]
