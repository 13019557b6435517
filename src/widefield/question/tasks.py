"""Tasks to start from: random inputs, a teacher that rotates, and images from files that are already on the machine."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from widefield.question import checks
from widefield.question.task import Task

__all__ = ["cifar10", "digits", "gaussian", "rotation"]

CLASSES = tuple(range(10))
CIFAR10_RECORD = 1 + 3 * 32 * 32
CIFAR10_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR10_TEST = ("test_batch.bin",)

Images = tuple[np.ndarray, np.ndarray]


def gaussian(n_samples: int, dimension: int, mean: float = 0.0, seed: int = 0, n_test: int = 0) -> Task:
    r"""Independent inputs :math:`x_{\alpha i} \sim \mathcal N(\text{mean}, 1)` without labels.

    With a non-zero ``mean`` :math:`m` all pairs of inputs overlap, :math:`x_\alpha \cdot x_\beta / D \approx m^2`
    against :math:`1 + m^2` on the diagonal.
    """
    x, x_test = _inputs(n_samples, dimension, n_test, _generator(seed))
    mean = checks.real("mean", mean)
    return Task(x + mean, x_test=None if x_test is None else x_test + mean)


def rotation(n_samples: int, dimension: int, depth: int, angle: float, seed: int = 0, n_test: int = 0) -> Task:
    r"""A sequence that a recurrent teacher produces by rotating a plane.

    .. math::  y^s = V^* (W^*)^s U^* x, \qquad s = 0, \dots, \text{depth} - 1

    :math:`x \sim \mathcal N(0, 1)` enters once. :math:`U^*` (:math:`2 \times D`) has random orthonormal rows,
    :math:`W^*` rotates by ``angle`` (radians), :math:`V^* = (1, 0)`; labels are (sample, state, 1) with variance 1 at
    every state and correlation :math:`\cos((s - t)\,\text{angle})` between states.
    """
    if checks.integer("dimension", dimension, 1) < 2:
        raise ValueError(f"`dimension` must be at least 2 to hold a plane, got {dimension!r}.")
    angles = checks.real("angle", angle) * np.arange(checks.integer("depth", depth, 1))
    rng = _generator(seed)
    plane = np.linalg.qr(rng.standard_normal((dimension, 2)))[0]
    x, x_test = _inputs(n_samples, dimension, n_test, rng)
    label = lambda x: (x @ plane @ np.stack([np.cos(angles), -np.sin(angles)]))[:, :, None]  # noqa: E731
    return Task(x, label(x), x_test=x_test, y_test=None if x_test is None else label(x_test))


def digits(n_train: int, n_test: int, classes: Iterable[int] | None = None, seed: int = 0) -> Task:
    """Handwritten digits, 8 × 8 pixels: the 1797 images that ship with scikit-learn (extra ``widefield[data]``).

    Pixels are divided by 16, their largest value. Two ``classes`` have labels −1 (the first) and +1 of shape (sample,);
    more have one-hot labels minus 1/(number of classes), so that each row sums to zero. Training and test images are
    drawn without repetition from all images of the ``classes`` (default: all ten).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "digits needs scikit-learn: install the extra with `pip install 'widefield[data]'`."
        ) from error
    data = load_digits()
    wanted, rng = _classes(classes), _generator(seed)
    n_train, n_test = checks.integer("n_train", n_train, 1), checks.integer("n_test", n_test, 0)
    chosen = _pick(rng, data.target, wanted, n_train + n_test, "`n_train` + `n_test`")
    x, labels = data.data[chosen] / 16.0, data.target[chosen]
    return _task((x[:n_train], labels[:n_train]), (x[n_train:], labels[n_train:]), wanted)


def cifar10(
    path: str | os.PathLike, n_train: int, n_test: int, classes: Iterable[int] | None = None, seed: int = 0
) -> Task:
    """CIFAR-10, 32 × 32 pixels in three colors, from its *binary version* in the folder ``path``.

    The folder holds data_batch_1.bin … data_batch_5.bin and test_batch.bin, each a row of records: one byte of label
    and 3072 bytes of pixels (red, green, blue planes). The Python version consists of pickles, which can run code, and
    is not read. Pixels are divided by 255; labels as in `digits`; training images come from the data batches, test
    images from the test batch.
    """
    folder, wanted, rng = checks.path("path", path), _classes(classes), _generator(seed)
    n_train, n_test = checks.integer("n_train", n_train, 1), checks.integer("n_test", n_test, 0)
    train = _read_cifar10(folder, CIFAR10_TRAIN, wanted, rng, n_train, "`n_train`")
    test = _read_cifar10(folder, CIFAR10_TEST, wanted, rng, n_test, "`n_test`") if n_test else train
    return _task(train, (test[0][:n_test], test[1][:n_test]), wanted)


def _inputs(
    n_samples: int, dimension: int, n_test: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None]:
    n_samples, dimension = checks.integer("n_samples", n_samples, 1), checks.integer("dimension", dimension, 1)
    n_test = checks.integer("n_test", n_test, 0)
    x = rng.standard_normal((n_samples, dimension))
    return x, rng.standard_normal((n_test, dimension)) if n_test else None


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(checks.integer("seed", seed, 0))


def _classes(classes: Iterable[int] | None) -> tuple[int, ...]:
    if classes is None:
        return CLASSES
    try:
        labels = tuple(classes)
    except TypeError:  # no sequence
        labels = ()
    whole = all(isinstance(c, int | np.integer) and not isinstance(c, bool) and c in CLASSES for c in labels)
    if not whole or len(labels) < 2 or len(set(labels)) < len(labels):
        raise ValueError(f"`classes` must be at least two different labels from 0 … 9, got {classes!r}.")
    return tuple(int(c) for c in labels)


def _read_cifar10(
    folder: Path, names: tuple[str, ...], wanted: tuple[int, ...], rng: np.random.Generator, n: int, argument: str
) -> Images:
    records = [_records(folder / name) for name in names]
    labels = np.concatenate([r[:, 0] for r in records])
    if labels.max(initial=0) not in CLASSES:
        raise ValueError(f"`path` holds a label {labels.max()}, but CIFAR-10 has labels 0 … 9: not its binary version.")
    chosen = _pick(rng, labels, wanted, n, argument)
    starts = np.cumsum([0, *(len(r) for r in records)])
    x = np.empty((n, CIFAR10_RECORD - 1))
    for record, start in zip(records, starts):
        here = (chosen >= start) & (chosen < start + len(record))
        x[here] = record[chosen[here] - start, 1:]
    return x / 255.0, labels[chosen]


def _records(file: Path) -> np.ndarray:
    if not file.is_file():
        raise ValueError(
            f"`path` must be a folder with the binary version of CIFAR-10 ({', '.join(CIFAR10_TRAIN + CIFAR10_TEST)}); "
            f"{file.name} is missing from {str(file.parent)!r}."
        )
    size = file.stat().st_size
    if size == 0 or size % CIFAR10_RECORD:
        raise ValueError(f"`path`: {file.name} has {size} bytes, not a multiple of {CIFAR10_RECORD} per image.")
    return np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, CIFAR10_RECORD)


def _pick(rng: np.random.Generator, labels: np.ndarray, wanted: tuple[int, ...], n: int, argument: str) -> np.ndarray:
    available = np.flatnonzero(np.isin(labels, wanted))
    if n > len(available):
        raise ValueError(f"{argument} must be at most {len(available)}, the images of classes {wanted}, got {n}.")
    return rng.permutation(available)[:n]


def _task(train: Images, test: Images, wanted: tuple[int, ...]) -> Task:
    def label(labels: np.ndarray) -> np.ndarray:
        if len(wanted) == 2:
            return np.where(labels == wanted[1], 1.0, -1.0)
        return (labels[:, None] == np.asarray(wanted)) - 1.0 / len(wanted)

    tested = len(test[0]) > 0
    return Task(
        train[0], label(train[1]), x_test=test[0] if tested else None, y_test=label(test[1]) if tested else None
    )
