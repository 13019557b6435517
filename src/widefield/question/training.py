"""The training: how parameters move, stated once for the theories and for finite networks."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

import numpy as np

from widefield.question import checks
from widefield.question.activation import source_of as source_of

Rate = float | np.ndarray | Callable[[int], float]
MOST_STEPS = 10**7
LOSSES = ("squared", "logistic", "cross_entropy")


@dataclass(frozen=True, eq=False, repr=False)
class Training(checks.Noun):
    r"""Gradient descent for ``steps`` updates with learning rate ``rate``.

    .. math::  \theta \leftarrow (1 - \eta\lambda)\theta - \eta\,\gamma_0^2N\,\nabla_\theta\sum\ell(f, y)
               + \sqrt{2\eta T}\,\xi

    Notation: :math:`\eta` is ``rate``, a number, one per step, or a function of the step (evaluated when the training is
    made); :math:`\gamma_0` ``richness``; :math:`\lambda` ``weight_decay``; :math:`T` ``temperature`` (Langevin noise on
    every parameter); ``momentum_time`` :math:`\tau` puts :math:`Q \leftarrow (1-\eta/\tau)Q - (\eta/\tau)\nabla` in place
    of the gradient. ``flow=True`` means small steps at fixed physical time rate · step. ``loss`` is a name, ``"squared"``,
    ``"logistic"`` (labels ±1) or ``"cross_entropy"`` (labels are class probabilities), or a JAX function of one sample's
    outputs and label. ``centered`` subtracts the initial function. ``initial_scale`` scales the initial weights without
    being a multiplier: one number, or one per weight matrix (input, hidden ones, readout). ``batches`` are weights (step, sample) of
    the samples in each step.

    Each theory states its scaling of the rate (the gradient of a sum over samples in `widefield.dynamics`, of a mean in
    `widefield.proportional`) and refuses what it does not cover.
    """

    rate: Rate
    steps: int
    _: KW_ONLY
    richness: float = 1.0
    flow: bool = False
    loss: str | Callable[..., Any] = "squared"
    weight_decay: float = 0.0
    momentum_time: float | None = None
    temperature: float = 0.0
    batches: np.ndarray | None = None
    centered: bool = False
    initial_scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        tau, steps = self.momentum_time, checks.integer("steps", self.steps, 1, MOST_STEPS)
        self._put(
            steps=steps,
            rate=_rate(self.rate, steps),
            richness=checks.nonnegative("richness", self.richness),
            flow=checks.flag("flow", self.flow),
            loss=self.loss if callable(self.loss) else checks.choice("loss", self.loss, LOSSES),
            weight_decay=checks.nonnegative("weight_decay", self.weight_decay),
            momentum_time=None if tau is None else checks.nonnegative("momentum_time", tau, positive=True),
            temperature=checks.nonnegative("temperature", self.temperature),
            batches=None if self.batches is None else _batches(self.batches, steps),
            centered=checks.flag("centered", self.centered),
            initial_scale=_initial_scale(self.initial_scale),
        )

    @property
    def rates(self) -> np.ndarray:
        """The rate of every update, shape (steps,)."""
        return np.broadcast_to(np.asarray(self.rate, dtype=float), (self.steps,))

    @property
    def times(self) -> np.ndarray:
        """Physical time rate · step at every row, shape (steps + 1,): row t is before update t."""
        return np.concatenate([[0.0], np.cumsum(self.rates)])

    @property
    def loss_name(self) -> str:
        """The loss as a word."""
        return self.loss if isinstance(self.loss, str) else getattr(self.loss, "__name__", "loss")

    @property
    def loss_source(self) -> str:
        """Source text of a user's loss, as a file keeps it."""
        return source_of(self.loss) if callable(self.loss) else ""

    def refuse(self, theory: str, *names: str) -> None:
        """Raise where one of the fields ``names``, which ``theory`` does not cover, is not at its default."""
        defaults = {f.name: f.default for f in fields(self)}
        for name in names:
            value, default = getattr(self, name), defaults[name]
            if value is not default and (isinstance(value, np.ndarray) or callable(value) or value != default):
                shown = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
                raise ValueError(
                    f"`{name}` of the training is not covered by {theory}: it must be {default!r}, got {shown}."
                )

    def __str__(self) -> str:
        first, last = self.rates[[0, -1]]
        rate = f"rates {first:g} … {last:g}" if isinstance(self.rate, np.ndarray) else f"rate {first:g}"
        text = f"Training: {self.steps} steps, {rate}, richness {self.richness:g}, {self.loss_name} loss"
        shown = ["flow", "weight_decay", "momentum_time", "temperature", "centered"]
        shown += ["initial_scale"] if self.initial_scale != 1.0 else []
        said = [f"{name} {getattr(self, name)}" for name in shown if getattr(self, name)]
        if self.batches is not None:
            said.append(f"batches of {np.count_nonzero(self.batches, axis=1).max()} samples at most")
        return f"{text}\n  with       {', '.join(said)}" if said else text


def _rate(rate: Any, steps: int) -> float | np.ndarray:
    """One positive number, or one per step."""
    try:
        given = [rate(t) for t in range(steps)] if callable(rate) else rate
    except Exception as error:  # whatever a user's function raises
        raise ValueError(f"`rate` must be a function of the step, got {rate!r}: {error}.") from error
    allowed = f"a number, {steps} of them (one per step) or a function of the step"
    rates = checks.as_array("rate", given, allowed)
    if rates.dtype.kind not in "fiu" or rates.shape not in ((), (steps,)):
        raise ValueError(f"`rate` must be {allowed}, got {checks.shown(rate)}.")
    rates = rates.astype(float)
    if not np.isfinite(rates).all() or (rates < checks.SMALLEST).any():
        raise ValueError(f"`rate` must be positive and finite, got {rates.min():g} … {rates.max():g}.")
    rates.flags.writeable = False
    return rates if rates.ndim else float(rates)


def _batches(batches: Any, steps: int) -> np.ndarray:
    weights, _ = checks.real_array("batches", batches, (2,), "weights (step, sample)")
    if len(weights) != steps:
        raise ValueError(f"`batches` must have one row per step ({steps}), got shape {weights.shape}.")
    if (weights < 0).any():
        raise ValueError(f"`batches` must be weights that are not negative, got {weights.min():g}.")
    return weights


def _initial_scale(value: Any) -> float | tuple[float, ...]:
    allowed = "one number, or one per weight matrix"
    values = checks.as_array("initial_scale", value, allowed)
    if values.ndim > 1 or (values.ndim == 1 and len(values) < 2):
        raise ValueError(f"`initial_scale` must be {allowed}, got {checks.shown(value)}.")
    return checks.per_state("initial_scale", value, values.size, tied=False, positive=True)
