"""What is asked of the proportional limit, checked, and as the arrays of the march."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from widefield.answer.boundary import working_dtype
from widefield.question import checks
from widefield.question.network import Network
from widefield.theories.proportional.inputs import Source
from widefield.theories.proportional.march import Parameters, Shape
from widefield.theories.proportional.spectra import compress
from widefield.theories.proportional.structured import Modes

Rate = float | np.ndarray | Callable[[int], float]
MODES_RTOL = 1e-10


@dataclass(frozen=True)
class Problem:
    """One training run. ``width`` is ν or N, ``batch`` α_B or B (infinite: population).

    ``rates`` has one value per row of the march, which is one longer than what is reported: the kernel of the last step
    shows in the row after it.
    """

    depth: int
    branch: float | None
    widths: tuple[float, ...]
    width: float
    data: float
    batch: float
    richness: float
    rates: np.ndarray
    label_noise: float
    centered: bool
    overlap: np.ndarray
    modes: Modes | None = None
    modes_error: float = 0.0
    dtype: str = "float64"

    @property
    def updates(self) -> np.ndarray:
        """The rate of every update."""
        return self.rates[:-2]

    @property
    def n_rows(self) -> int:
        """Rows that are reported: one before every update and one after the last."""
        return len(self.rates) - 1

    @property
    def shape(self) -> Shape:
        """What the march is compiled for."""
        return Shape(
            n_steps=len(self.rates), depth=self.depth, n_channels=len(self.overlap), reused=bool(np.isfinite(self.data)),
            residual=self.branch is not None, noisy=bool(np.isfinite(self.width) or np.isfinite(self.batch)),
        )  # fmt: skip

    @property
    def parameters(self) -> Parameters:
        """Arrays of the march."""
        number = lambda value: jnp.asarray(value, self.dtype)  # noqa: E731
        source = Source(number(self.label_noise), number(self.overlap), number(1 / self.data), number(1 / self.batch))
        offset = 0.0 if self.centered else 1 / self.richness
        return Parameters(
            number(self.rates), number(self.richness), number(offset), number(1 / self.width), number(self.widths), source,
            number(1.0 if self.branch is None else self.branch),
            None if self.modes is None else Modes(*map(number, self.modes)),
        )  # fmt: skip

    def refined(self, factor: int) -> "Problem":
        """The same training time in ``factor`` times as many steps."""
        updates = np.repeat(self.updates / factor, factor)
        return replace(self, rates=np.append(updates, updates[-1:].repeat(2)))

    def deeper(self, depth: int) -> "Problem":
        """The residual network of ``depth`` layers with the same depth-scaled branch."""
        assert self.branch is not None
        branch = self.branch * np.sqrt(self.depth / depth)
        return replace(self, depth=depth, branch=branch, widths=(1.0,) * depth)


def problem(
    network: Network,
    *,
    width_ratio: float,
    data_ratio: float | None,
    batch_ratio: float | None,
    richness: float,
    rate: Rate,
    steps: int,
    label_noise: float,
    centered: bool,
    spectrum: Any,
    width: float | None,
    batch: float | None,
    target_overlap: Any,
    dtype: Any = "float64",
) -> Problem:
    """Check every argument of `widefield.proportional` and gather them."""
    _check_network(network)
    steps = checks.integer("steps", steps, 1)
    gamma = checks.nonnegative("richness", richness)
    if gamma == 0 and not centered:
        raise ValueError(
            "`richness` must be positive unless the network is centered: its initial function grows as 1/richness."
        )
    updates = checks.schedule("rate", rate, steps)
    rates = np.append(updates, updates[-1:].repeat(2))  # the two rows after the last update
    if data_ratio is not None and batch_ratio is not None:
        raise ValueError("Give `data_ratio` (full-batch descent) or `batch_ratio` (online descent), not both.")
    structured = _structured(spectrum, width_ratio, data_ratio, batch_ratio, width, batch, target_overlap)
    common: dict[str, Any] = {
        "depth": network.depth, "branch": network.branch, "widths": tuple(network.relative_widths), "richness": gamma,
        "rates": rates, "label_noise": checks.nonnegative("label_noise", label_noise), "centered": bool(centered),
        "dtype": working_dtype(dtype).name,
    }  # fmt: skip
    if structured is not None:
        modes, error = compress(*structured, longest=float(rates[:-2].sum()), rtol=MODES_RTOL)
        return Problem(
            width=_ratio("width", width), data=np.inf, batch=_ratio("batch", batch), overlap=np.eye(1), modes=modes,
            modes_error=error, **common,
        )  # fmt: skip
    return Problem(
        width=_ratio("width_ratio", width_ratio), data=_ratio("data_ratio", data_ratio),
        batch=_ratio("batch_ratio", batch_ratio), overlap=_overlap(target_overlap), **common,
    )  # fmt: skip


def _check_network(network: Any) -> None:
    if not isinstance(network, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or ResNet), got {type(network).__name__}.")
    if network.kind == "RNN":
        raise ValueError("`network` must have untied weights: proportional covers DNN and ResNet, got an RNN.")
    if not network.activation.known_as("linear"):
        raise ValueError(
            f"`network` must have the activation 'linear': proportional covers linear networks, got {network.activation}."
        )
    ones = (network.weight_variances, network.input_variances, network.readout_variance)
    if network.readout_variance is None or any(np.any(np.asarray(v) != 1) for v in ones):
        raise ValueError("`network` must have weight, input and readout variances 1 in proportional; use `richness`.")
    if network.bias_variances.any() or network.readout_bias_variance:
        raise ValueError("`network` must have no biases (bias_variance=0) in proportional.")


def _ratio(name: str, value: Any) -> float:
    """A positive number, or infinity where left out."""
    if value is None or (np.ndim(value) == 0 and np.asarray(value).dtype.kind == "f" and np.isposinf(value)):
        return np.inf
    return checks.nonnegative(name, value, positive=True)


def _structured(
    spectrum, width_ratio, data_ratio, batch_ratio, width, batch, overlap
) -> tuple[np.ndarray, np.ndarray] | None:
    """Eigenvalues and target powers, or None for isotropic data."""
    if spectrum is None:
        for name, value, instead in (("width", width, "width_ratio"), ("batch", batch, "batch_ratio")):
            if value is not None:
                raise ValueError(f"`{name}` goes with `spectrum`; isotropic data take `{instead}`.")
        return None
    if data_ratio is not None:
        raise ValueError(
            "`data_ratio`: full-batch descent on structured data is not covered; use `batch` or the population."
        )
    if np.isfinite(_ratio("width_ratio", width_ratio)) or batch_ratio is not None or overlap is not None:
        raise ValueError(
            "`spectrum` goes with `width=` and `batch=`, numbers of neurons and samples, instead of `width_ratio`, "
            "`batch_ratio` and `target_overlap`."
        )
    if not isinstance(spectrum, tuple | list) or len(spectrum) != 2:
        raise ValueError("`spectrum` must be a pair (eigenvalues, target powers).")
    eigenvalues, _ = checks.real_array("spectrum[0]", spectrum[0], (1,), "the eigenvalues")
    powers, _ = checks.real_array("spectrum[1]", spectrum[1], (1,), "the target powers")
    if len(eigenvalues) != len(powers) or (eigenvalues <= 0).any() or (powers < 0).any() or not powers.any():
        raise ValueError("`spectrum` must be positive eigenvalues and as many powers, none negative and not all zero.")
    return eigenvalues, powers


def _overlap(overlap: Any) -> np.ndarray:
    if overlap is None:
        return np.eye(1)
    matrix, _ = checks.real_array("target_overlap", overlap, (2,), "overlaps (channel, channel)")
    if (
        matrix.shape[0] != matrix.shape[1]
        or not np.allclose(matrix, matrix.T)
        or np.linalg.eigvalsh(matrix)[0] < -1e-12
    ):
        raise ValueError("`target_overlap` must be a symmetric matrix without negative eigenvalues.")
    return np.array(matrix)
