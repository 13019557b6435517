"""Regression from tiles: the factor of a stored kernel, its weights, and predictions block by block of test inputs."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from widefield.answer.certificate import Status
from widefield.answer.jobs import Job
from widefield.answer.tiles import Known, digest_of
from widefield.solvers import tiled
from widefield.theories.prior.core import Target
from widefield.theories.prior.stored.kernel import StoredKernel, Unsolved, fill, padded

TEST_ROWS = (8, 64, 256)  # sizes of blocks: few, so that few are compiled


@dataclass(frozen=True)
class StoredRegression:
    """Labels ``y`` (sample, output) explained by a field of the kernel: weights (kernel + noise)⁻¹y and their predictions."""

    kernel: StoredKernel
    field: str
    noise: float

    @property
    def factor_name(self) -> str:
        """Where the factor lies."""
        return f"factor-{self.field}-{digest_of(self.noise)}"

    def matrix(self, i: int, j: int) -> np.ndarray:
        """A tile of the kernel."""
        return self.kernel.read(self.field, i, j)

    def factor(self, i: int, j: int) -> np.ndarray:
        """A tile of the factor."""
        return self.kernel.store.read(f"{self.factor_name}/{i:04d}-{j:04d}")[0]

    def jobs(self) -> list[Job]:
        """The jobs that make the factor: each waits for its left neighbor and for its diagonal, and so for all it reads."""
        name = lambda i, j: f"{self.factor_name}-{i}-{j}"  # noqa: E731
        before = lambda i, j: [name(i, j - 1)] * (j > 0) + [name(j, j)] * (i > j)  # noqa: E731
        return [Job(name(i, j), partial(self.make, i, j), tuple(before(i, j))) for i, j in self.kernel.pairs]

    def make(self, i: int, j: int) -> dict[str, Known]:
        """Make a tile of the factor that is not there; of one on the diagonal the pivots are known."""
        name = f"{self.factor_name}/{i:04d}-{j:04d}"

        def factor() -> dict[str, tuple[np.ndarray, Known]]:
            try:
                L = tiled.factor_tile(self.matrix, self.factor, self.noise, i, j)
            except np.linalg.LinAlgError as error:
                raise self._singular(str(error)) from None
            pivots = np.diag(L) ** 2 if i == j else np.ones(1)
            return {name: (L, {"pivots": [pivots.min(), pivots.max()], "log": float(np.sum(np.log(pivots)))})}

        return self.kernel.store.ensure([name], factor)

    def _singular(self, what: str) -> Unsolved:
        words = f"the training kernel plus noise={self.noise:g} is not positive definite ({what})"
        return Unsolved(Status.not_psd, words)

    def check_pivots(self) -> float:
        """The log determinant; raises `Unsolved` where the factor passed by rounding alone."""
        stored = [self.kernel.store.read(f"{self.factor_name}/{i:04d}-{i:04d}")[1] for i in range(self.kernel.n_tiles)]
        least, most = min(known["pivots"][0] for known in stored), max(known["pivots"][1] for known in stored)
        eps = float(np.finfo(self.kernel.dtype).eps)
        if least <= 4 * self.kernel.n_samples * eps * most:
            raise self._singular(f"smallest pivot {least:.1e} against {most:.1e}")
        return sum(known["log"] for known in stored)

    def weights_name(self, y: np.ndarray) -> str:
        """Where the weights for these labels lie."""
        return f"weights-{digest_of(self.field, self.noise, y)}"

    def weigh(self, y: np.ndarray) -> dict[str, Known]:
        """Make the weights (kernel + noise)⁻¹y; known are their log evidence and residual, Eqs. (prior.6), (prior.7)."""
        name = self.weights_name(y)

        def solve() -> dict[str, tuple[np.ndarray, Known]]:
            log_determinant = self.check_pivots()
            labels = self.kernel.split(y)
            whitened = tiled.solve_lower(self.factor, labels)
            weights = np.concatenate(solved := tiled.solve_upper(self.factor, whitened))
            n, n_outputs = y.shape
            square = sum(float(np.sum(block**2)) for block in whitened)
            evidence = -0.5 * (square + n_outputs * (log_determinant + n * np.log(2 * np.pi)))
            product = tiled.multiply(self.matrix, solved)
            off = np.linalg.norm(np.concatenate(product.rows) + self.noise * weights - y)
            scale = (product.norm + self.noise) * np.linalg.norm(weights) + np.linalg.norm(y)
            return {name: (weights, {"log_evidence": evidence, "residual": float(off / (scale or 1.0))})}

        return self.kernel.store.ensure([name], solve)

    def prediction_jobs(self, weights: str, tests: str, n_test: int) -> list[Job]:
        """The jobs that predict the test inputs of that name; each leaves an array of its own name."""
        place = f"prediction-{digest_of(weights, tests)}"
        blocks = [f"{k:04d}" for k in range(-(-n_test // TEST_ROWS[-1]))]
        return [Job(f"{place}/{k}", partial(self.predict, weights, f"{tests}/{k}", f"{place}/{k}")) for k in blocks]

    def predict(self, weights: str, tests: str, name: str) -> dict[str, Known]:
        """Kernel rows of a block of test inputs times the weights: (state, test, output), of the tangent kernel (test, output)."""

        def rows() -> dict[str, tuple[np.ndarray, Known]]:
            store, network = self.kernel.store, self.kernel.network
            parts, x_test = self.kernel.split(store.read(weights)[0]), store.read(tests)[0]
            length = next(size for size in TEST_ROWS if size >= len(x_test))
            total: np.ndarray | float = 0.0
            known: Known = {"error": 0.0, "notes": []}
            for k, part in enumerate(parts):
                x_train = padded(store.read(f"{self.kernel.inputs}/{k:04d}")[0], self.kernel.tile)
                x = np.concatenate([padded(x_test, length), x_train])
                test, train = range(len(x_test)), range(length, length + len(part))
                target = Target("tangent", None, None, test, train)
                if self.field == "output":
                    target = Target("readout", range(network.depth), (network.depth - 1,), test, train)
                arrays, about = fill(network, x, {"rows": target}, self.kernel.rtol)
                values = arrays["rows"][:, 0] if self.field == "output" else arrays["rows"]
                total = total + values.astype(float, copy=False) @ part
                notes = list(dict.fromkeys([*known["notes"], *about["notes"]]))
                known = {"error": float(np.maximum(known["error"], about["error"])), "notes": notes}
            return {name: (np.asarray(total), known)}

        return self.kernel.store.ensure([name], rows)
