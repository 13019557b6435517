"""Kernels in tiles on a disk: the numbers are those of whole matrices, the bits nobody's but the question's, and faults one
error each after which the same call goes on."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

import widefield as wf
from widefield.answer import boundary, files, jobs
from widefield.answer.tiles import DamagedTile
from widefield.theories.prior.stored import kernel, solve

RNG = np.random.default_rng(11)
X, Y, X_TEST = RNG.normal(size=(300, 5)), RNG.normal(size=(300, 2)), RNG.normal(size=(7, 5))
NET = wf.RNN(3, "relu", weight_variance=1.5, bias_variance=0.1)
TASK = wf.Task(X, Y, x_test=X_TEST)
NOISE = 0.1
FIELDS = ("output", "ntk", "log_evidence", "test_prediction", "ntk_prediction")
ask = partial(wf.prior, NET, TASK, noise=NOISE, quantities=FIELDS)


def content(folder):
    """Everything that a store holds."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module", autouse=True)
def small_tiles():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "SMALLEST", 64)
        yield


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished store and its answer."""
    folder = tmp_path_factory.mktemp("stored") / "kernel"
    return folder, ask(store=folder)


@pytest.fixture
def copied(stored, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(stored[0], tmp_path / "kernel")


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def relu_kernels(x, y):
    """Covariance and tangent kernel of the outputs, from the arc-cosine formulas."""
    bias, w = NET.bias_variances[0], NET.weight_variances[0]
    q, p = bias + (x**2).mean(1)[:, None], bias + (y**2).mean(1)[None]
    C = theta = bias + x @ y.T / x.shape[1]
    for weight in (w, w, 1.0):
        angle = np.arccos(np.clip(C / np.sqrt(q * p), -1, 1))
        value = np.sqrt(q * p) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
        C, theta = bias + weight * value, bias + weight * value + weight * (np.pi - angle) / (2 * np.pi) * theta
        q, p = bias + weight * q / 2, bias + weight * p / 2
    return C, theta


def test_numbers_are_those_of_the_textbook(stored):
    answer = stored[1]
    K, theta = relu_kernels(X, X)
    K_test, theta_test = relu_kernels(X_TEST, X)
    np.testing.assert_allclose(answer.output, K, rtol=1e-7)  # arccos of a rounding on the diagonal
    np.testing.assert_allclose(answer.ntk, theta, rtol=1e-7)

    def predictions(noise):
        one = np.eye(len(X))
        return K_test @ np.linalg.solve(K + noise * one, Y), theta_test @ np.linalg.solve(theta + noise * one, Y)

    found = answer.test_prediction[-1], answer.ntk_prediction
    for ours, right, wrong in zip(found, predictions(NOISE), predictions(1.1 * NOISE), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-6, atol=1e-6)
        assert np.abs(ours.values - wrong).max() > 1e-4, "a noise that is off by 10 % must be seen"
    _, log_determinant = np.linalg.slogdet(2 * np.pi * (K + NOISE * np.eye(len(X))))
    evidence = -0.5 * (np.sum(Y * np.linalg.solve(K + NOISE * np.eye(len(X)), Y)) + 2 * log_determinant)
    assert float(answer.log_evidence) == pytest.approx(evidence, rel=1e-7)


def test_numbers_are_those_of_whole_matrices(stored):
    whole = wf.prior(NET, TASK, noise=NOISE, quantities=FIELDS[:4])
    assert stored[1].status is wf.Status.success
    for name, field in whole.data.data_vars.items():
        np.testing.assert_allclose(stored[1].data[name], field, rtol=1e-10, atol=1e-11)
        assert stored[1].data[name].dims == field.dims


def test_the_series_of_a_network_without_closed_form(tmp_path):
    net, task = wf.DNN(2, "tanh"), wf.Task(X[:100], Y[:100], x_test=X_TEST)
    whole, tiled = (wf.prior(net, task, noise=NOISE, quantities=FIELDS[:4], store=s) for s in (None, tmp_path / "tanh"))
    for name, field in whole.data.data_vars.items():
        np.testing.assert_allclose(tiled.data[name], field, rtol=1e-8, atol=1e-9)


def test_single_precision(stored, tmp_path):
    answer = ask(store=tmp_path / "single", dtype="float32")
    assert answer.output.dtype == np.float32 and answer.certificate.checks["residual"].value < 1e-5
    np.testing.assert_allclose(answer.test_prediction, stored[1].test_prediction, atol=1e-3)


def test_workers_write_the_same_bits_even_when_one_is_killed(stored, client, tmp_path):
    answer = ask(store=tmp_path / "two", client=client)
    assert content(tmp_path / "two") == content(stored[0])
    assert answer.test_prediction.equals(stored[1].test_prediction)

    def kill():
        while not list((tmp_path / "killed").glob("output/*.npy")):
            time.sleep(0.001)
        os.kill(next(iter(client.cluster.workers.values())).pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    ask(store=tmp_path / "killed", client=client)
    killer.join()
    assert content(tmp_path / "killed") == content(stored[0])


@pytest.mark.full
def test_two_workers_at_ten_thousand_inputs(tmp_path, monkeypatch):
    """The numbers of the whole matrix, and workers that take the memory of a few tiles."""
    monkeypatch.setattr(kernel, "SMALLEST", 1024)
    x, y, x_test = RNG.normal(size=(10_000, 20)), RNG.normal(size=(10_000, 3)), RNG.normal(size=(500, 20))
    task, few = wf.Task(x, y, x_test=x_test), wf.Task(x[:2000], y[:2000], x_test=x_test)
    call = partial(wf.prior, wf.DNN(3, "relu"), noise=0.1, quantities=("log_evidence", "test_prediction"))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        call(task=few, store=tmp_path / "few", client=client)  # compiles
        workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
        resident = lambda: np.asarray([worker.memory_info().rss for worker in workers])  # noqa: E731
        before, peak, ended = resident(), resident(), threading.Event()

        def watch():
            while not ended.wait(0.02):
                np.maximum(peak, resident(), out=peak)

        watcher = threading.Thread(target=watch)
        watcher.start()
        stored = call(task=task, store=tmp_path / "large", client=client)
        ended.set()
        watcher.join()
    tiles = (peak - before) / (8 * 1024**2)
    assert (tiles < 10).all(), tiles
    whole = call(task=task)
    np.testing.assert_allclose(stored.test_prediction, whole.test_prediction, rtol=1e-9, atol=1e-10)
    assert float(stored.log_evidence) == pytest.approx(float(whole.log_evidence), rel=1e-12)


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import widefield as wf
from distributed import Client, LocalCluster

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background

def main(folder, elsewhere):
    rng = np.random.default_rng(0)
    task = wf.Task(rng.normal(size=(3000, 3)), rng.normal(size=3000))
    client = Client(LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")) if elsewhere else None
    call = lambda: wf.prior(wf.DNN(2), task, noise=1.0, quantities="log_evidence", store=folder, client=client)
    interrupted = []

    def interrupt():
        while not list(Path(folder).glob("output/*.npy")):
            time.sleep(0.01)
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        call()
    except KeyboardInterrupt:
        print("seconds", time.monotonic() - interrupted[0], len(list(Path(folder).glob("factor-*/*.npy"))))
    print(call().status)

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "workers")
"""


@pytest.mark.full
@pytest.mark.parametrize("where", ["here", "workers"])
def test_an_interrupt_is_answered_and_the_same_call_goes_on(where, tmp_path):
    (tmp_path / "script.py").write_text(INTERRUPTED)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "kernel"), where]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    words = run.stdout.split()
    assert words[0] == "seconds" and float(words[1]) < 3 and words[2] == "0" and words[-1] == "success", run.stdout


def test_an_answer_that_is_there_is_read(stored, monkeypatch):
    monkeypatch.setattr(files, "write_atomically", None)
    again = ask(store=stored[0])
    assert all(again.data[name].equals(field) for name, field in stored[1].data.data_vars.items())


def test_other_noises_labels_and_test_inputs_use_the_kernel_that_is_there(copied):
    before = content(copied)
    task = wf.Task(X, 2 * Y[:, :1], x_test=-X_TEST[:3])
    other = wf.prior(NET, task, noise=2 * NOISE, store=copied)
    whole = wf.prior(NET, task, noise=2 * NOISE, quantities=("test_prediction",))
    np.testing.assert_allclose(other.test_prediction, whole.test_prediction, atol=1e-10)
    after = content(copied)
    assert before.items() <= after.items()
    made = {name.split("-")[0] for name in after.keys() - before.keys()}
    assert made == {"factor", "prediction", "tests", "weights"}


def interrupted_at(folder, n_files):
    """A store as it is when a call has been ended after so many files."""
    kept = sorted((p for p in folder.rglob("*.npy")), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[n_files:]:
        path.unlink()


@pytest.mark.parametrize("n_files", [3, 17, 40, 66])
def test_an_interrupted_call_goes_on(stored, copied, n_files):
    interrupted_at(copied, n_files)
    ask(store=copied)
    assert content(copied) == content(stored[0])


KINDS = ("inputs", "output", "ntk", "factor-output", "factor-ntk", "weights", "tests", "prediction")


@pytest.mark.parametrize(
    "kind, damage", [*((kind, "flip") for kind in KINDS), *(("output", how) for how in ("cut", "empty", "exchange"))]
)
def test_a_damaged_file_is_made_again_with_a_note(stored, copied, kind, damage):
    path, *others = sorted(path for path in copied.rglob("*.npy") if kind in str(path.relative_to(copied)))
    original = bytearray(path.read_bytes())
    if damage == "flip":
        original[len(original) // 2] ^= 1
    changed = {
        "flip": original,
        "cut": original[:-10],
        "empty": b"",
        "exchange": others[-1].read_bytes() if others else b"x",
    }
    path.write_bytes(changed[damage])
    answer = ask(store=copied)
    assert content(copied) == content(stored[0])
    name = str(path.relative_to(copied).with_suffix(""))
    assert any("made again" in note and name in note for note in answer.notes)
    assert answer.test_prediction.equals(stored[1].test_prediction)


def test_a_manifest_that_is_damaged_is_an_error(copied):
    manifest = copied / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b"relu", b"tanh"))
    with pytest.raises(ValueError, match="`store`.*manifest"):
        ask(store=copied)


@pytest.mark.parametrize(
    "name, change",
    [
        ("network", {"network": wf.RNN(3, "relu", weight_variance=1.5, bias_variance=0.2)}),
        ("x", {"task": wf.Task(X + 1e-9, Y)}),
        ("x", {"task": wf.Task(X[:200], Y[:200])}),
        ("rtol", {"rtol": 1e-9}),
        ("dtype", {"dtype": "float32"}),
    ],
)
def test_a_store_of_another_question_is_refused(stored, name, change):
    with pytest.raises(ValueError, match=rf"`store` holds kernels of another question, which differs in .*`{name}`"):
        wf.prior(**{"network": NET, "task": TASK, "noise": NOISE, "store": stored[0]} | change)


def test_functions_are_known_by_their_values(tmp_path):
    def opened(slope):
        return kernel.open_kernel(
            tmp_path / "line", wf.DNN(1, wf.Activation(lambda x: slope * x, name="line")), X, 1e-10
        )

    assert opened(1.0).store == opened(1.0).store
    with pytest.raises(ValueError, match="differs in `network`"):
        opened(2.0)


def test_folders_that_cannot_be_a_store(tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path, tmp_path / "file", tmp_path / "none" / "kernel", "\0"):
        with pytest.raises(ValueError, match="`store`"):
            ask(store=folder)
    assert content(tmp_path) == {"file": b"x"}


@pytest.mark.parametrize("state", [0, (0, 2)])
def test_other_readouts_are_refused(tmp_path, state):
    y = Y if state == 0 else np.stack([Y, Y], 1)
    with pytest.raises(ValueError, match="`store`.*last state"):
        wf.prior(NET, wf.Task(X, y, supervised=state), store=tmp_path / "other")
    with pytest.raises(ValueError, match="`quantities`"):
        wf.prior(NET, TASK, store=tmp_path / "other", quantities="hidden")


@pytest.mark.parametrize("n_writes", [0, 1, 5, 50, 150])
def test_a_full_disk_loses_nothing(stored, tmp_path, monkeypatch, n_writes):
    write, count = os.write, iter(range(n_writes))

    def full(*args):
        if next(count, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", full)
        with pytest.raises((OSError, ValueError), match="No space left"):
            ask(store=tmp_path / "full")
    assert content(tmp_path / "full").items() <= content(stored[0]).items()
    ask(store=tmp_path / "full")
    assert content(tmp_path / "full") == content(stored[0])


def test_room_on_the_disk_is_asked_for_first(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**6))
    with pytest.raises(OSError, match="`store` needs .* MB more, but 1 MB are free") as caught:
        ask(store=tmp_path / "small")
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "small" / "output").exists()


def test_a_singular_kernel_is_told(tmp_path):
    x = np.concatenate([X[:99], X[:1]])
    answer = wf.prior(NET, wf.Task(x, Y[:100]), store=tmp_path / "singular", throw=False)
    assert answer.status is wf.Status.not_psd
    assert any("not positive definite" in note for note in answer.notes)


def test_variances_without_bounds_are_told(tmp_path):
    answer = wf.prior(wf.DNN(3, weight_variance=1e300), wf.Task(X[:9]), store=tmp_path / "large", throw=False)
    assert answer.status is wf.Status.nonfinite and not answer.data.data_vars


def test_what_does_not_fit_is_read_when_it_is_used(stored, copied, client, tmp_path, monkeypatch):
    assert client.status == "running"  # by which dask would read, and xarray lock what it writes
    monkeypatch.setattr(solve, "memory_budget", lambda: 2 * 8 * 300**2)
    answer = ask(store=copied)
    assert answer.output.chunks is None and answer.ntk.chunks is not None
    assert wf.load(answer.save(tmp_path / "answer.nc")).ntk.equals(answer.ntk)
    with monkeypatch.context() as patch:
        patch.setattr(boundary, "memory_budget", lambda: 1000)
        with pytest.raises(MemoryError, match="A file that is made in memory"):
            answer.save(tmp_path / "answer.nc")
    assert "on disk" in str(answer) and any("`ntk` is read from" in note for note in answer.notes)
    np.testing.assert_array_equal(answer.ntk, stored[1].ntk)
    path = copied / "ntk" / "0003-0001.npy"
    path.write_bytes(path.read_bytes()[:-1])
    np.testing.assert_array_equal(answer.ntk[:64, :64], stored[1].ntk[:64, :64])
    with pytest.raises(DamagedTile, match="0003-0001"):
        answer.ntk.values  # noqa: B018


@pytest.mark.parametrize("given", ["text", 1, object(), LocalCluster])
def test_a_client_is_one_of_dask(given, tmp_path):
    with pytest.raises(ValueError, match="`client` must be a dask.distributed.Client"):
        ask(store=tmp_path / "none", client=given)
    assert not content(tmp_path)


def test_clients_that_cannot_work(stored, client, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="`client` needs `store`"):
        ask(client=client)
    other = Client(client.cluster)
    folder = tmp_path / "closed"

    def close():
        while not list(folder.glob("output/*.npy")):
            time.sleep(0.001)
        other.close()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(RuntimeError, match="`client` was closed.*goes on"):
        ask(store=folder, client=other)
    closer.join()
    with pytest.raises(ValueError, match="`client` is closed"):
        ask(store=folder, client=other)
    monkeypatch.setattr(jobs, "PATIENCE", 1.0)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as empty,
        Client(empty) as alone,
        pytest.raises(RuntimeError, match="`client` has had no worker for 1 s"),
    ):
        ask(store=folder, client=alone)
    assert content(folder).items() <= content(stored[0]).items()
    ask(store=folder)
    assert content(folder) == content(stored[0])
