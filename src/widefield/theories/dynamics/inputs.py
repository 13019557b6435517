"""The kernel of inputs and biases over (state, sample) nodes and its roots: made once for a question."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from widefield.question.network import Network
from widefield.question.task import Task

ROUND_OFF, REST = (
    1e-14,
    1e-12,
)  # shares of a variance that are none: of the training inputs, and of what a test input adds
BLOCK = 64  # test inputs that are worked on together


@dataclass(frozen=True, eq=False)
class Inputs:
    """Training inputs among each other; test inputs against these, each with what they do not explain."""

    network: Network
    task: Task

    @property
    def masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Variances (state, state_) of inputs and of biases that two states have in common."""
        network = self.network

        def masked(variances: np.ndarray, tied: bool) -> np.ndarray:
            root = np.sqrt(variances)
            return np.outer(root, root) if tied else np.diag(variances)

        inputs = masked(network.input_variances, network.inputs == "tied")
        return inputs, masked(network.bias_variances, network.biases == "tied")

    def _driven(self, test: bool) -> np.ndarray:
        """(state, sample, D), zero at states that are not driven."""
        depth, task = self.network.depth, self.task
        x = task.sequences(depth, test=test)[task.n_samples * test :]
        driven = np.zeros((depth, len(x), x.shape[-1]))
        driven[: x.shape[1]] = x.swapaxes(0, 1)
        return driven

    def _between(self, x: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The kernel (state · sample, state · sample) of two sets of driven inputs."""
        inputs, biases = self.masks
        flat = lambda nodes: nodes.reshape(-1, nodes.shape[-1])  # noqa: E731
        spread = lambda mask: np.kron(mask, np.ones((x.shape[1], other.shape[1])))  # noqa: E731
        return spread(inputs) * (flat(x) @ flat(other).T) / x.shape[-1] + spread(biases)

    @cached_property
    def kernel(self) -> np.ndarray:
        """(state · sample, state · sample) of the training inputs."""
        x = self._driven(False)
        return self._between(x, x)

    @cached_property
    def root(self) -> np.ndarray:
        """L0 (state, sample, direction): a thin root of the kernel of the training inputs."""
        values, vectors = np.linalg.eigh(self.kernel)
        keep = values > ROUND_OFF * max(values[-1], 1e-300)
        keep[-1] = True  # a zero input still needs a direction
        values = np.maximum(values, 0.0)
        return (vectors[:, keep] * np.sqrt(values[keep])).reshape(self.network.depth, -1, int(keep.sum()))

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")  # an overflow is seen in the outputs
    def test_roots(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every test input: its part along the directions of L0 (state, test, direction), and a root of what it has beside
        them (state, test, fresh), Eq. (dynamics.37).

        Nothing that is reported reads how test inputs correlate with each other, so that the fresh directions of all are one
        set.
        """
        x, test, depth = self._driven(False), self._driven(True), self.network.depth
        root, (inputs, biases) = self.root.reshape(depth * x.shape[1], -1), self.masks
        inverse = root / np.maximum(np.sum(root**2, axis=0), 1e-300)
        known, rest = [], []
        for first in range(0, test.shape[1], BLOCK):
            some = test[:, first : first + BLOCK]
            along = (self._between(some, x) @ inverse).reshape(*some.shape[:2], -1)
            own = np.einsum("kbd,lbd->bkl", some, some) * inputs / x.shape[-1] + biases
            values, vectors = np.linalg.eigh(own - np.einsum("kbd,lbd->bkl", along, along))
            values = np.where(values > REST * np.trace(own, axis1=1, axis2=2)[:, None], values, 0.0)
            known.append(along)
            rest.append(np.moveaxis(vectors * np.sqrt(values)[:, None], 1, 0))
        fresh = np.concatenate(rest, axis=1)
        return np.concatenate(known, axis=1), fresh[..., fresh.any(axis=(0, 1))]

    @cached_property
    def joined(self) -> np.ndarray:
        """(state, sample, direction): L0 with the test inputs after the training inputs, fresh directions last."""
        if not self.task.n_test:
            return self.root
        known, fresh = self.test_roots
        train = np.pad(self.root, [(0, 0), (0, 0), (0, fresh.shape[-1])])
        return np.concatenate([train, np.concatenate([known, fresh], axis=-1)], axis=1)
