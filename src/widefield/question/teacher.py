"""The teacher: random data of the proportional limit, stated by ratios or by a spectrum."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.question import checks

INPUTS = ("first", "same", "sequence")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Teacher(checks.Noun):
    r"""Gaussian inputs and a linear target with label noise.

    .. math::  y = w_*\cdot x/\sqrt D + \sigma\epsilon, \qquad \alpha = P/D, \qquad \alpha_B = B/D

    Notation: :math:`\alpha` is ``data_ratio`` (the same data at every step), :math:`\alpha_B` ``batch_ratio`` (fresh data
    at every step); infinite or left out means the population, and reads back as None. :math:`\sigma^2` is ``label_noise``, a variance.
    ``target_overlap`` :math:`Q_{cc'} = w_c\cdot w_{c'}/D` gives several output channels. Structured data:
    ``spectrum`` = (eigenvalues :math:`\lambda_k`, target powers :math:`\lambda_kw_k^2`) with the counts ``samples`` or
    ``batch`` in place of the ratios, or, with ratios, a bulk (eigenvalues, target powers :math:`p_q\lambda_qw_q^2`,
    fractions :math:`p_q`). Recurrent networks: ``inputs`` says whether x arrives at the first state, is the same at every
    state, or is fresh at each; ``supervised`` are the states with labels (default: the last).
    """

    data_ratio: float | None = None
    batch_ratio: float | None = None
    label_noise: float = 0.0
    spectrum: tuple[np.ndarray, ...] | None = None
    target_overlap: np.ndarray | None = None
    samples: float | None = None
    batch: float | None = None
    inputs: str = "first"
    supervised: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        counts = ("data_ratio", "batch_ratio", "samples", "batch")
        self._put(
            **{name: checks.ratio(name, getattr(self, name)) for name in counts},
            label_noise=checks.nonnegative("label_noise", self.label_noise),
            spectrum=None if self.spectrum is None else _spectrum(self.spectrum),
            target_overlap=None if self.target_overlap is None else _overlap(self.target_overlap),
            inputs=checks.choice("inputs", self.inputs, INPUTS),
            supervised=checks.states(self.supervised),
        )
        for fixed, fresh in (("data_ratio", "batch_ratio"), ("samples", "batch")):
            if getattr(self, fixed) is not None and getattr(self, fresh) is not None:
                raise ValueError(f"Give `{fixed}` (full-batch descent) or `{fresh}` (online descent), not both.")
        counted = self.spectrum is not None and len(self.spectrum) == 2
        for count, ratio in (("samples", "data_ratio"), ("batch", "batch_ratio")):
            wrong, right = (ratio, count) if counted else (count, ratio)
            if getattr(self, wrong) is not None:
                kind = "a `spectrum` of single modes" if counted else "isotropic data or a bulk `spectrum`"
                raise ValueError(f"`{wrong}` does not go with {kind}; give `{right}`.")

    @property
    def n_outputs(self) -> int:
        """Output channels."""
        return 1 if self.target_overlap is None else len(self.target_overlap)

    def __str__(self) -> str:
        kinds = {
            "data_ratio": "the same data at every step, P/D", "batch_ratio": "fresh data at every step, B/D",
            "samples": "samples, the same at every step", "batch": "fresh samples at every step",
        }  # fmt: skip
        given = {name: getattr(self, name) for name in kinds if getattr(self, name) is not None}
        said = [f"{kinds[name]} = {value:g}" for name, value in given.items()]
        lines = [f"Teacher: {said[0] if said else 'population'}, label noise variance {self.label_noise:g}"]
        if self.spectrum is not None:
            lines.append(f"  spectrum   {len(self.spectrum[0])} eigenvalues")
        if self.n_outputs > 1:
            lines.append(f"  outputs    {self.n_outputs} channels")
        return "\n".join(lines)


def _spectrum(spectrum: Any) -> tuple[np.ndarray, ...]:
    if not isinstance(spectrum, tuple | list) or len(spectrum) not in (2, 3):
        raise ValueError("`spectrum` must be (eigenvalues, target powers) or (eigenvalues, target powers, fractions).")
    words = ("the eigenvalues", "the target powers", "the fractions")
    parts = tuple(checks.real_array(f"spectrum[{i}]", part, (1,), words[i])[0] for i, part in enumerate(spectrum))
    if len({len(part) for part in parts}) > 1 or (parts[0] <= 0).any() or (parts[1] < 0).any() or not parts[1].any():
        raise ValueError("`spectrum` must be positive eigenvalues and as many powers, none negative and not all zero.")
    if len(parts) == 3 and ((parts[2] <= 0).any() or abs(parts[2].sum() - 1) > 1e-8):
        raise ValueError(f"`spectrum[2]` must be positive fractions that sum to 1, got a sum of {parts[2].sum():g}.")
    return parts


def _overlap(overlap: Any) -> np.ndarray:
    matrix, _ = checks.real_array("target_overlap", overlap, (2,), "overlaps (channel, channel)")
    square = matrix.shape[0] == matrix.shape[1]
    if not square or not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] < -1e-12:
        raise ValueError("`target_overlap` must be a symmetric matrix without negative eigenvalues.")
    return matrix
