"""Small image classification tasks, read from files that are already on the machine."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from widefield.question import checks
from widefield.question.task import Task

N_CLASSES = 10
CIFAR10_RECORD = 1 + 3 * 32 * 32
CIFAR10_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR10_TEST = ("test_batch.bin",)

Images = tuple[np.ndarray, np.ndarray]


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
    folder, wanted, rng = Path(path), _classes(classes), _generator(seed)
    n_train, n_test = checks.integer("n_train", n_train, 1), checks.integer("n_test", n_test, 0)
    train = _read_cifar10(folder, CIFAR10_TRAIN, wanted, rng, n_train, "`n_train`")
    test = _read_cifar10(folder, CIFAR10_TEST, wanted, rng, n_test, "`n_test`") if n_test else train
    return _task(train, (test[0][:n_test], test[1][:n_test]), wanted)


def _read_cifar10(
    folder: Path, names: tuple[str, ...], wanted: tuple[int, ...], rng: np.random.Generator, n: int, argument: str
) -> Images:
    records = [_records(folder / name) for name in names]
    labels = np.concatenate([r[:, 0] for r in records])
    if labels.max(initial=0) >= N_CLASSES:
        raise ValueError(f"`path` holds a label {labels.max()}, but CIFAR-10 has labels 0 … 9: not its binary version.")
    chosen = _pick(rng, labels, wanted, n, argument)
    starts = np.cumsum([0, *(len(r) for r in records)])
    x = np.empty((n, CIFAR10_RECORD - 1))
    for record, start, stop in zip(records, starts[:-1], starts[1:], strict=True):
        here = (chosen >= start) & (chosen < stop)
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


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(checks.integer("seed", seed, 0))


def _classes(classes: Iterable[int] | None) -> tuple[int, ...]:
    if classes is None:
        return tuple(range(N_CLASSES))
    message = f"`classes` must be at least two different labels from 0 … {N_CLASSES - 1}, got {classes!r}."
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise ValueError(message)
    found = tuple(classes)
    whole = all(isinstance(c, int | np.integer) and not isinstance(c, bool) and 0 <= c < N_CLASSES for c in found)
    if not whole or len(found) < 2 or len(set(found)) < len(found):
        raise ValueError(message)
    return tuple(int(c) for c in found)


def _pick(rng: np.random.Generator, labels: np.ndarray, wanted: tuple[int, ...], n: int, argument: str) -> np.ndarray:
    available = np.flatnonzero(np.isin(labels, wanted))
    if n > len(available):
        raise ValueError(f"{argument} must be at most {len(available)}, the images of classes {wanted}, got {n}.")
    return rng.permutation(available)[:n]


def _task(train: Images, test: Images, wanted: tuple[int, ...]) -> Task:
    x, y = train[0], _labels(train[1], wanted)
    if len(test[0]) == 0:
        return Task(x, y)
    return Task(x, y, x_test=test[0], y_test=_labels(test[1], wanted))


def _labels(labels: np.ndarray, wanted: tuple[int, ...]) -> np.ndarray:
    if len(wanted) == 2:
        return np.where(labels == wanted[1], 1.0, -1.0)
    return (labels[:, None] == np.asarray(wanted)) - 1.0 / len(wanted)
