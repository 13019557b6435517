"""The question asked of the proportional limit, checked, and as the arrays of the march."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from widefield.answer.boundary import memory_budget, require_memory, working_dtype
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.theories.proportional.march.causal import Parameters, Shape
from widefield.theories.proportional.march.isotropic import Source
from widefield.theories.proportional.march.structured import Modes, compress

MODES_RTOL = 1e-10  # of the Gauss rules that stand for long spectra
LARGEST = 1e60  # of a physical parameter, its inverse the smallest: losses and their squares stay numbers
NOT_COVERED = ("batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale")


@dataclass(frozen=True)
class Problem:
    """A network, a teacher and a training with ``width``, which is ν, or N with a spectrum (then with ``modes``)."""

    network: Network
    teacher: Teacher
    training: Training
    width: float
    modes: Modes | None = None
    modes_error: float = 0.0
    dtype: str = "float64"

    @property
    def data(self) -> float:
        """α, infinite unless the same data are used at every step."""
        return self.teacher.data_ratio or np.inf

    @property
    def batch(self) -> float:
        """α_B or B, infinite on the population."""
        return self.teacher.batch_ratio or self.teacher.batch or np.inf

    @property
    def overlap(self) -> np.ndarray:
        """Q, (channel, channel)."""
        return np.eye(1) if self.teacher.target_overlap is None else self.teacher.target_overlap

    @property
    def branch(self) -> float:
        """β of a residual network, 1 in others."""
        return 1.0 if self.network.branch is None else self.network.branch

    @cached_property
    def rates(self) -> np.ndarray:
        """One per row of the march: one row more than is reported, since it shows the kernel of the last step."""
        return np.append(self.training.rates, self.training.rates[-1:].repeat(2))

    @property
    def n_rows(self) -> int:
        """Rows that are reported: one before every update and one after the last."""
        return self.training.steps + 1

    @property
    def shape(self) -> Shape:
        """What the march is compiled for."""
        noisy = bool(np.isfinite(self.width) or np.isfinite(self.batch))
        residual, reused = self.network.branch is not None, bool(np.isfinite(self.data))
        return Shape(self.training.steps + 2, self.network.depth, len(self.overlap), reused, residual, noisy)

    @property
    def parameters(self) -> Parameters:
        """Arrays of the march."""
        number = lambda value: jnp.asarray(value, self.dtype)  # noqa: E731
        gamma, teacher = self.training.richness, self.teacher
        source = Source(*map(number, (teacher.label_noise, self.overlap, 1 / self.data, 1 / self.batch)))
        return Parameters(
            number(self.rates),
            number(gamma),
            offset=number(0.0 if self.training.centered else 1 / gamma),
            inverse_width=number(1 / self.width),
            widths=number(self.network.relative_widths),
            source=source,
            branch=number(self.branch),
            modes=None if self.modes is None else Modes(*map(number, self.modes)),
        )

    def at_rate(self, rate: float) -> "Problem":
        """The same training with a constant rate."""
        return replace(self, training=replace(self.training, rate=rate))

    def refined(self, factor: int) -> "Problem":
        """The same training time in ``factor`` times as many steps."""
        rates = np.repeat(self.training.rates / factor, factor)
        return replace(self, training=replace(self.training, rate=rates, steps=len(rates)))

    def deeper(self, depth: int) -> "Problem":
        """The residual network of ``depth`` layers with the same depth-scaled branch."""
        branch = self.branch * np.sqrt(self.network.depth / depth)
        return replace(
            self, network=replace(self.network, depth=depth, branch=branch, widths=self.network.relative_widths[0])
        )


def pose(
    network: Network,
    teacher: Teacher,
    training: Training,
    *,
    width_ratio: float = np.inf,
    width: float | None = None,
    dtype: Any = "float64",
    theory: str = "proportional",
) -> Problem:
    """The problem that a public call asks; ``ValueError`` names what ``theory`` does not cover."""
    variances = (network.weight_variances, network.input_variances, network.readout_variance)
    if network.kind == "RNN":
        raise ValueError("`network` must have untied weights: proportional covers DNN and ResNet, got an RNN.")
    if not network.activation.known_as("linear"):
        raise ValueError(
            f"`network` must have the activation 'linear': proportional covers linear networks, got {network.activation}."
        )
    if network.readout_variance is None or any(np.any(np.asarray(v) != 1) for v in variances):
        raise ValueError("`network` must have weight, input and readout variances 1 in proportional; use `richness`.")
    if network.bias_variances.any() or network.readout_bias_variance:
        raise ValueError("`network` must have no biases (bias_variance=0) in proportional.")
    for name, given, instead in (
        ("samples", teacher.samples is not None, "structured data take a `batch` or the population"),
        ("spectrum", teacher.spectrum is not None and len(teacher.spectrum) == 3, "give single modes, not a bulk"),
        ("inputs", teacher.inputs != "first", "there is one input, at the first layer"),
        ("supervised", teacher.supervised is not None, "labels belong to the last layer"),
    ):
        if given:
            raise ValueError(f"`{name}` of the teacher is not covered by {theory}: {instead}.")
    check_training(training, theory)
    dtype = working_dtype(dtype).name
    ratio, count = checks.ratio("width_ratio", width_ratio), checks.ratio("width", width)
    sizes = {"width_ratio": ratio, "width": count, "richness": training.richness}
    sizes |= {name: getattr(teacher, name) for name in ("data_ratio", "batch_ratio", "batch", "label_noise")}
    for name, value in sizes.items():
        smallest = 0.0 if name == "label_noise" else 1 / LARGEST
        if value and not smallest <= value <= LARGEST:
            raise ValueError(f"`{name}` must lie between {smallest:g} and {LARGEST:g} in {theory}, got {value:g}.")
    if teacher.spectrum is None:
        if width is not None:
            raise ValueError("`width` goes with a `spectrum`; isotropic data take `width_ratio`.")
        return Problem(network, teacher, training, ratio or np.inf, dtype=dtype)
    if ratio is not None or teacher.target_overlap is not None:
        raise ValueError(
            "A `spectrum` goes with `width=`, a number of neurons, and neither `width_ratio` nor `target_overlap`."
        )
    eigenvalues, powers = teacher.spectrum[:2]
    refuse_memory(8 * 204 * len(eigenvalues), f"Gauss rules of {len(eigenvalues)} eigenvalues", len(eigenvalues))
    modes, error = compress(eigenvalues, powers, longest=float(training.rates.sum()), rtol=MODES_RTOL)
    return Problem(network, teacher, training, count or np.inf, modes, error, dtype)


def check_training(training: Any, theory: str) -> None:
    """Refuse a training that the proportional limit does not cover."""
    training.refuse(theory, *NOT_COVERED)
    if training.richness == 0 and not training.centered:
        raise ValueError(
            "`richness` must be positive unless the network is centered: its initial function grows as 1/richness."
        )


def refuse_memory(need: float, what: str, count: float, unit: str = "eigenvalues", power: int = 1) -> None:
    """Refuse ``what`` where it does not fit, and say how many of its ``count`` would; bytes grow as their ``power``."""
    fits = int(count * min(1.0, memory_budget() / need) ** (1 / power))
    require_memory(need, what, f"About {fits} {unit} would fit.")
