"""Sizes, inputs and targets of the networks that `simulate.proportional` trains, from the teacher."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from widefield.question import checks
from widefield.question.activation import as_activation
from widefield.question.network import Network
from widefield.question.teacher import Teacher
from widefield.simulate.networks.call import LARGEST, count, require
from widefield.simulate.proportional.training import Model

NAME = "simulate.proportional"


@dataclass(frozen=True)
class Sizes:
    """The networks ``model`` and what makes their targets: an ``overlap`` (channel, channel), or ``powers`` λ w² (D,).

    ``n_data`` inputs per gradient, None for population gradient descent; ``online`` draws them anew at each step.
    ``options`` are what the certificate tells.
    """

    model: Model
    overlap: np.ndarray
    powers: np.ndarray | None
    n_data: int | None
    online: bool
    options: dict[str, Any]
    notes: tuple[str, ...] = ()

    @cached_property
    def targets(self) -> np.ndarray:
        """w* (channel, D)."""
        eigenvalues = self.model.eigenvalues
        if self.powers is None:
            return targets_of(self.overlap, len(eigenvalues))
        return np.sqrt(self.powers / eigenvalues)[None]


def sizes_of(net: Network, teacher: Teacher, richness: float, dimension: Any, width_ratio: Any, width: Any) -> Sizes:
    """Sizes by ratios for isotropic inputs, by counts for structured ones."""
    if not isinstance(net, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or ResNet), got {type(net).__name__}.")
    if net.weights == "tied":
        raise ValueError(f"`network` must be a DNN or ResNet in {NAME}: its weights are untied, got a {net.kind}.")
    if net.activation != as_activation("linear"):
        raise ValueError(f"`activation` must be 'linear' in {NAME}, got {net.activation}.")
    require(NAME, net, weight_variance=1, input_variance=1, readout_variance=1)
    require(NAME, net, bias_variance=0, readout_bias_variance=0)
    if not isinstance(teacher, Teacher):
        raise ValueError(f"`teacher` must be a widefield.Teacher, got {type(teacher).__name__}.")
    _refuse(f"in {NAME}", samples=teacher.samples, supervised=teacher.supervised)
    if teacher.inputs != "first":
        raise ValueError(f"`inputs` must be 'first' in {NAME}: its networks are not recurrent, got {teacher.inputs!r}.")
    if teacher.spectrum is None:
        _refuse("without `spectrum`: isotropic inputs take ratios", width=width)
        return _isotropic(net, teacher, richness, dimension, width_ratio)
    if len(teacher.spectrum) == 3:
        raise ValueError(f"`spectrum` must be single modes in {NAME}, (eigenvalues, target powers), got a bulk.")
    _refuse("with `spectrum`", target_overlap=teacher.target_overlap)
    _refuse("with `spectrum`: structured inputs take `width`", dimension=dimension, width_ratio=width_ratio)
    eigenvalues, powers = teacher.spectrum  # inputs of covariance diag λ and a target of powers λ w²
    batch, layers = teacher.batch, net.sizes(count("width", width, 1))
    if batch is not None and (batch != round(batch) or batch < 1):
        raise ValueError(f"`batch` must be a whole number of samples in {NAME}, got {batch:g}.")
    return Sizes(
        Model(eigenvalues, 1.0, layers, richness, net.branch),
        overlap=np.eye(1),
        powers=powers,
        n_data=None if batch is None else round(batch),
        online=batch is not None,
        options={"width": int(width), "sizes": layers},
    )


def _refuse(reason: str, **values: Any) -> None:
    """Raise where one of ``values`` is given."""
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"`{name}` must be left out {reason}, got {value!r}.")


def _isotropic(net: Network, teacher: Teacher, richness: float, dimension: Any, width_ratio: Any) -> Sizes:
    """Sizes for inputs of unit covariance, from ratios to the dimension."""
    D = count("dimension", dimension, 1)
    if width_ratio is None:
        raise ValueError(f"`width_ratio` is needed in {NAME}: networks have a finite width.")
    nu = checks.nonnegative("width_ratio", width_ratio, positive=True)
    ratios = {"data_ratio": teacher.data_ratio, "batch_ratio": teacher.batch_ratio}
    given = {name: value for name, value in ratios.items() if value is not None}
    wanted = {f"width_ratio x widths[{i}]": nu * a for i, a in enumerate(net.relative_widths)} | given
    for name in [name for name, ratio in wanted.items() if ratio * D > LARGEST]:
        raise ValueError(
            f"`{name.split()[0]}` must be at most {LARGEST / D:.3g} at dimension {D}, got {wanted[name]:g}."
        )
    counts = {name: round(ratio * D) for name, ratio in wanted.items()}
    for name in [name for name, number in counts.items() if number < 1]:
        at_least = f"`{name.split()[0]}` must be at least 1/dimension"
        raise ValueError(f"{at_least}, got {wanted[name]:g} at dimension {D}.")
    layers = tuple(counts[f"width_ratio x widths[{i}]"] for i in range(net.depth))
    overlap = np.eye(1) if teacher.target_overlap is None else teacher.target_overlap
    if len(overlap) > D:
        raise ValueError(f"`target_overlap` must have at most {D} channels (the dimension), got {len(overlap)}.")
    return Sizes(
        Model(np.broadcast_to(1.0, (D,)), 1 / np.sqrt(D), layers, richness, net.branch),
        overlap,
        powers=None,
        n_data=next((counts[name] for name in given), None),
        online="batch_ratio" in given,
        options={"dimension": D, "width_ratio": nu, "sizes": layers},
        notes=tuple(f"{name}: {wanted[name]:g} is {n}/{D} here" for name, n in counts.items() if n != wanted[name] * D),
    )


def targets_of(overlap: np.ndarray, dimension: int) -> np.ndarray:
    r"""w* (channel, D) of the wanted Gram matrix. Inputs and weights are rotation invariant, so its frame is free."""
    values, vectors = np.linalg.eigh(overlap)
    targets = np.zeros((len(overlap), dimension))
    targets[:, : len(overlap)] = np.sqrt(dimension) * vectors * np.sqrt(np.maximum(values, 0))
    return targets
