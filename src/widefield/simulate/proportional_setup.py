"""What `simulate.proportional` is asked: sizes, inputs, targets and rates, checked."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from widefield.question import checks
from widefield.question.activation import as_activation
from widefield.question.network import Network

NAME = "simulate.proportional"


@dataclass(frozen=True)
class Sizes:
    """``eigenvalues`` λ (D,), ``target_weights`` w* of structured inputs, ``layers`` N_1 … N_L, inputs per gradient.

    ``n_data`` is None for population gradient descent; ``online`` draws the inputs anew at each step.
    """

    eigenvalues: np.ndarray
    target_weights: np.ndarray | None
    layers: tuple[int, ...]
    n_data: int | None
    online: bool
    options: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def dimension(self) -> int:
        """Number of inputs D."""
        return len(self.eigenvalues)

    @property
    def input_scale(self) -> float:
        """s_0 of `proportional_train`."""
        return 1 / np.sqrt(self.dimension) if self.target_weights is None else 1.0


def check_network(net: Any) -> None:
    """Refuse what the proportional limit does not cover, by name."""
    if not isinstance(net, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or ResNet), got {type(net).__name__}.")
    if net.weights == "tied":
        raise ValueError(f"`network` must be a DNN or ResNet in {NAME}: its weights are untied, got a {net.kind}.")
    if net.activation != as_activation("linear"):
        raise ValueError(f"`activation` must be 'linear' in {NAME}, got {net.activation}.")
    for name in ("weight_variance", "input_variance", "readout_variance"):
        value = getattr(net, name)
        if value is None or np.any(np.asarray(value) != 1):
            raise ValueError(f"`{name}` must be 1 in {NAME}, got {value}.")
    for name in ("bias_variance", "readout_bias_variance"):
        if np.any(np.asarray(getattr(net, name)) != 0):
            raise ValueError(f"`{name}` must be 0 in {NAME}: it has no biases, got {getattr(net, name)}.")


def isotropic_sizes(net: Network, dimension: Any, width_ratio: Any, data_ratio: Any, batch_ratio: Any) -> Sizes:
    """Sizes for inputs of unit covariance, from ratios to the dimension."""
    D = checks.integer("dimension", dimension, 1)
    nu = checks.nonnegative("width_ratio", width_ratio, positive=True)
    ratios = {"data_ratio": _ratio("data_ratio", data_ratio), "batch_ratio": _ratio("batch_ratio", batch_ratio)}
    given = {name: value for name, value in ratios.items() if value is not None}
    if len(given) > 1:
        raise ValueError(
            f"`data_ratio` and `batch_ratio` exclude each other: fixed inputs or fresh batches, got {data_ratio!r} and "
            f"{batch_ratio!r}."
        )
    wanted = {f"width_ratio x widths[{i}]": nu * a for i, a in enumerate(net.relative_widths)} | given
    counts = {name: _count(name, value, D) for name, value in wanted.items()}
    rounded = [f"{name}: {wanted[name]:g} is {n}/{D} here" for name, n in counts.items() if n != wanted[name] * D]
    layers = tuple(counts[f"width_ratio x widths[{i}]"] for i in range(net.depth))
    n_data = next((counts[name] for name in given), None)
    options = {"dimension": D, "width_ratio": nu, **ratios, "sizes": layers}
    return Sizes(np.ones(D), None, layers, n_data, "batch_ratio" in given, options, tuple(rounded))


def structured_sizes(net: Network, spectrum: Any, width: Any, batch: Any) -> Sizes:
    """Sizes for inputs of covariance diag λ and a target of powers λ w², from ``width`` and ``batch``."""
    if not isinstance(spectrum, tuple | list) or len(spectrum) != 2:
        raise ValueError("`spectrum` must be a pair of arrays: eigenvalues and target powers.")
    eigenvalues, _ = checks.real_array("spectrum[0]", spectrum[0], (1,), "one positive eigenvalue per input")
    powers, _ = checks.real_array("spectrum[1]", spectrum[1], (1,), "one non-negative target power per input")
    if not (eigenvalues > 0).all():
        raise ValueError(f"`spectrum[0]` must be positive, got the eigenvalue {eigenvalues.min()}.")
    if powers.shape != eigenvalues.shape or (powers < 0).any():
        raise ValueError(
            f"`spectrum[1]` must hold {len(eigenvalues)} non-negative target powers, got shape {powers.shape} and "
            f"smallest {powers.min()}."
        )
    n_data = None if batch is None else checks.integer("batch", batch, 1)
    layers = net.sizes(width)
    options: dict[str, Any] = {"spectrum": [eigenvalues, powers], "width": int(width), "batch": n_data, "sizes": layers}
    return Sizes(eigenvalues, np.sqrt(powers / eigenvalues), layers, n_data, n_data is not None, options)


def refuse_together(reason: str, **values: Any) -> None:
    """Raise where one of ``values`` is given."""
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"`{name}` must be left out {reason}, got {value!r}.")


def targets_of(sizes: Sizes, overlap: Any) -> np.ndarray:
    r"""w* (channel, D) of the wanted Gram matrix. Inputs and weights are rotation invariant, so its frame is free."""
    if sizes.target_weights is not None:
        refuse_together("with `spectrum`", target_overlap=overlap)
        return sizes.target_weights[None]
    Q, _ = checks.real_array("target_overlap", np.eye(1) if overlap is None else overlap, (2,), "a square matrix")
    size = np.abs(Q).max()
    if Q.shape[0] != Q.shape[1] or np.abs(Q - Q.T).max() > 1e-12 * size:
        raise ValueError(f"`target_overlap` must be a symmetric matrix (channel, channel), got shape {Q.shape}.")
    if len(Q) > sizes.dimension:
        raise ValueError(
            f"`target_overlap` must have at most {sizes.dimension} channels (the dimension), got {len(Q)}."
        )
    values, vectors = np.linalg.eigh(Q)
    if values[0] < -1e-12 * size:
        raise ValueError(f"`target_overlap` must be positive semi-definite, got the eigenvalue {values[0]:.3g}.")
    targets = np.zeros((len(Q), sizes.dimension))
    targets[:, : len(Q)] = np.sqrt(sizes.dimension) * vectors * np.sqrt(np.maximum(values, 0))
    return targets


def rates_of(rate: Any, steps: int) -> np.ndarray:
    """One rate per update from a number, an array or a function of the step."""
    return checks.schedule("rate", rate, steps)


def flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False, got {value!r}.")
    return value


def _ratio(name: str, value: Any) -> float | None:
    """A positive ratio; None where infinite or left out."""
    if value is None or (isinstance(value, float | np.floating) and value == np.inf):
        return None
    return checks.nonnegative(name, value, positive=True)


def _count(name: str, ratio: float, dimension: int) -> int:
    count = round(ratio * dimension)
    if count < 1:
        raise ValueError(f"`{name.split()[0]}` must be at least 1/dimension, got {ratio:g} at dimension {dimension}.")
    return count
