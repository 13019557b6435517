"""Task generators."""

import sys

import numpy as np
import pytest

import widefield as wf


def test_gaussian():
    task = wf.tasks.gaussian(2000, 50, mean=0.5, seed=1, n_test=30)
    assert task.x.shape == (2000, 50) and task.x_test.shape == (30, 50) and task.y is None
    error = 1 / np.sqrt(task.x.size)
    assert abs(task.x.mean() - 0.5) < 6 * error
    assert abs(task.x.var() - 1) < 6 * np.sqrt(2) * error
    np.testing.assert_array_equal(task.x, wf.tasks.gaussian(2000, 50, mean=0.5, seed=1).x)
    assert not np.allclose(task.x, wf.tasks.gaussian(2000, 50, mean=0.5, seed=2).x)


def test_rotation_labels_follow_a_recurrent_teacher():
    """Labels over all states are linear in x, rotate by the angle, and return after a full turn."""
    task = wf.tasks.rotation(40, 6, depth=9, angle=np.pi / 4, seed=3, n_test=5)
    assert task.y.shape == (40, 9, 1) and task.y_test.shape == (5, 9, 1)
    assert task.supervised_states(9) == tuple(range(9))
    y = task.y[:, :, 0]
    np.testing.assert_allclose(y[:, 8], y[:, 0], atol=1e-12)
    np.testing.assert_allclose(y[:, 4], -y[:, 0], atol=1e-12)
    np.testing.assert_allclose(y[:, 2:], 2 * np.cos(np.pi / 4) * y[:, 1:-1] - y[:, :-2], atol=1e-12)
    teacher = np.linalg.lstsq(task.x, y, rcond=None)[0]
    np.testing.assert_allclose(task.x_test @ teacher, task.y_test[:, :, 0], atol=1e-12)
    lag = np.abs(np.subtract.outer(np.arange(9), np.arange(9)))
    np.testing.assert_allclose(teacher.T @ teacher, np.cos(lag * np.pi / 4), atol=1e-12)
    assert np.linalg.matrix_rank(teacher, tol=1e-10) == 2


def test_digits():
    task = wf.tasks.digits(100, 50, seed=0)
    assert task.x.shape == (100, 64) and task.x_test.shape == (50, 64)
    assert task.x.min() == 0.0 and task.x.max() == 1.0
    assert task.y.shape == (100, 10)
    np.testing.assert_allclose(task.y.sum(axis=1), 0.0, atol=1e-14)
    np.testing.assert_allclose(np.unique(task.y), [-0.1, 0.9], atol=1e-15)
    assert not {*map(bytes, task.x)} & {*map(bytes, task.x_test)}, "training and test images are disjoint"


def test_two_digits_are_plus_and_minus_one():
    from sklearn.datasets import load_digits

    task = wf.tasks.digits(60, 0, classes=(7, 3), seed=1)
    assert task.x_test is None and task.y.shape == (60,)
    labels = {bytes(x / 16): t for x, t in zip(load_digits().data, load_digits().target, strict=True)}
    expected = [{7: -1.0, 3: 1.0}[labels[bytes(x)]] for x in task.x]
    np.testing.assert_array_equal(task.y, expected)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"widefield\[data\]"):
        wf.tasks.digits(10, 0)


@pytest.fixture
def cifar(tmp_path):
    """Small synthetic files in the binary format; an image's pixels all hold its serial number."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for i, name in enumerate(names):
        records = np.empty((8, 3073), np.uint8)
        records[:, 0] = np.arange(8) % 4
        records[:, 1:] = (8 * i + np.arange(8))[:, None]
        records.tofile(tmp_path / name)
    return tmp_path


def test_cifar10_reads_the_binary_version(cifar):
    task = wf.tasks.cifar10(cifar, 30, 6, classes=(0, 1, 2, 3), seed=0)
    assert task.x.shape == (30, 3072) and task.y.shape == (30, 4)
    serial = np.round(task.x[:, 0] * 255).astype(int)
    assert len(set(serial)) == 30 and serial.max() < 40
    np.testing.assert_array_equal(task.x, np.repeat(serial[:, None], 3072, axis=1) / 255)
    np.testing.assert_array_equal(task.y.argmax(axis=1), serial % 8 % 4)
    assert np.all(np.round(task.x_test[:, 0] * 255) >= 40), "test images come from the test batch"
    two = wf.tasks.cifar10(str(cifar), 10, 0, classes=(1, 2))
    serial = np.round(two.x[:, 0] * 255).astype(int)
    np.testing.assert_array_equal(two.y, np.where(serial % 4 == 2, 1.0, -1.0))


def test_cifar10_bad_files(cifar):
    with pytest.raises(ValueError, match="`n_train`"):
        wf.tasks.cifar10(cifar, 41, 0)
    with pytest.raises(ValueError, match="`n_test`"):
        wf.tasks.cifar10(cifar, 4, 5, classes=(0, 1))
    (cifar / "data_batch_3.bin").write_bytes(b"\x00" * 3074)
    with pytest.raises(ValueError, match=r"`path`.*data_batch_3.bin"):
        wf.tasks.cifar10(cifar, 4, 2)
    (cifar / "data_batch_3.bin").write_bytes(b"\xff" * 3073)
    with pytest.raises(ValueError, match="`path` holds a label 255"):
        wf.tasks.cifar10(cifar, 4, 2)
    (cifar / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match=r"`path`.*data_batch_3.bin is missing"):
        wf.tasks.cifar10(cifar, 4, 2)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: wf.tasks.gaussian(0, 3), "n_samples"),
        (lambda: wf.tasks.gaussian(3, 0), "dimension"),
        (lambda: wf.tasks.gaussian(3, 3, n_test=-1), "n_test"),
        (lambda: wf.tasks.gaussian(3, 3, mean=np.nan), "mean"),
        (lambda: wf.tasks.gaussian(3, 3, mean="one"), "mean"),
        (lambda: wf.tasks.gaussian(3, 3, seed=-1), "seed"),
        (lambda: wf.tasks.rotation(3, 1, 4, 0.1), "dimension"),
        (lambda: wf.tasks.rotation(3, 4, 0, 0.1), "depth"),
        (lambda: wf.tasks.rotation(3, 4, 3, np.inf), "angle"),
        (lambda: wf.tasks.digits(0, 3), "n_train"),
        (lambda: wf.tasks.digits(3, -1), "n_test"),
        (lambda: wf.tasks.digits(1000, 1000), "n_train"),
        (lambda: wf.tasks.digits(3, 3, classes=(1,)), "classes"),
        (lambda: wf.tasks.digits(3, 3, classes=(1, 1)), "classes"),
        (lambda: wf.tasks.digits(3, 3, classes=(1, 10)), "classes"),
        (lambda: wf.tasks.digits(3, 3, classes="01"), "classes"),
        (lambda: wf.tasks.digits(3, 3, classes=3), "classes"),
        (lambda: wf.tasks.cifar10("no such folder", 3, 3), "path"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        call()
