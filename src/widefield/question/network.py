"""The network: what is random, with which variance, and what is shared across states."""

from dataclasses import dataclass

import numpy as np

from widefield.question import checks
from widefield.question.activation import Activation, as_activation

Variance = float | tuple[float, ...]
MOST_STATES = 10**6
SHARING = ("tied", "untied")


@dataclass(frozen=True, repr=False)
class Network(checks.Noun):
    r"""A deep or recurrent network of ``depth`` hidden states with Gaussian parameters.

    .. math::  h^a = W^a \varphi(h^{a-1}) + U^a x^a + \xi^a, \qquad f^a = V \varphi(h^a) + \xi^{\rm out}

    Notation: :math:`\mathrm{Var}\,W = w/n` with :math:`w` = ``weight_variance``, :math:`\mathrm{Var}\,U = u/D` with
    :math:`u` = ``input_variance``, :math:`\mathrm{Var}\,\xi = b` = ``bias_variance``; each theory states how :math:`V`
    scales with the width. ``weights``, ``biases`` and ``inputs`` say whether that parameter is one for all states
    (``"tied"``) or drawn anew at each (``"untied"``). ``readout_variance=None`` means that there is no readout layer:
    the outputs are the pre-activations of single neurons of each state. ``branch`` :math:`= \beta` makes the network
    residual, :math:`h^a = h^{a-1} + \beta W^a \varphi(h^{a-1}) + \dots`; None means no skip connections.
    """

    depth: int
    activation: Activation
    weight_variance: Variance = 1.0
    input_variance: Variance = 1.0
    readout_variance: float | None = 1.0
    bias_variance: Variance = 0.0
    readout_bias_variance: float | None = None
    weights: str = "untied"
    biases: str = "untied"
    inputs: str = "tied"
    widths: Variance = 1.0
    branch: float | None = None

    def __post_init__(self) -> None:
        depth = checks.integer("depth", self.depth, 1, MOST_STATES)
        self._put(depth=depth, activation=as_activation(self.activation))
        for name in ("weights", "biases", "inputs"):
            checks.choice(name, getattr(self, name), SHARING)
        for name, length, sharing in (
            ("weight_variance", depth - 1, self.weights),
            ("input_variance", depth, self.inputs),
            ("bias_variance", depth, self.biases),
        ):
            self._put(**{name: checks.per_state(name, getattr(self, name), length, tied=sharing == "tied")})
        if self.readout_variance is not None:
            self._put(readout_variance=checks.nonnegative("readout_variance", self.readout_variance))
        bias = self.bias_variances[-1] if self.readout_bias_variance is None else self.readout_bias_variance
        self._put(
            readout_bias_variance=checks.nonnegative("readout_bias_variance", bias),
            widths=checks.per_state("widths", self.widths, depth, tied=False, positive=True),
        )
        unequal = isinstance(self.widths, tuple) and len(set(self.widths)) > 1
        if unequal and "tied" in (self.weights, self.biases):
            raise ValueError("`widths` must all be equal when weights or biases are tied across states.")
        if self.branch is None:
            return
        self._put(branch=checks.nonnegative("branch", self.branch, positive=True))
        if self.weights == "tied":
            raise ValueError("`weights` must be 'untied' in a ResNet (a network with `branch`), got 'tied'.")
        if unequal:
            raise ValueError(f"`widths` must all be equal in a ResNet (a network with `branch`), got {self.widths}.")

    def refuse_branch(self, theory: str) -> None:
        """Raise where this is a ResNet, which ``theory`` does not cover."""
        if self.branch is not None:
            raise ValueError(
                f"`network` must be without skip connections in {theory}: it covers DNN and RNN, got a ResNet with "
                f"branch {self.branch:g}."
            )

    @property
    def weight_variances(self) -> np.ndarray:
        """One weight variance per transition, shape (depth − 1,)."""
        return np.broadcast_to(np.asarray(self.weight_variance, dtype=float), (self.depth - 1,))

    @property
    def input_variances(self) -> np.ndarray:
        """One input variance per state, shape (depth,)."""
        return np.broadcast_to(np.asarray(self.input_variance, dtype=float), (self.depth,))

    @property
    def bias_variances(self) -> np.ndarray:
        """One bias variance per state, shape (depth,)."""
        return np.broadcast_to(np.asarray(self.bias_variance, dtype=float), (self.depth,))

    @property
    def relative_widths(self) -> np.ndarray:
        """Relative widths of the hidden states, shape (depth,)."""
        return np.broadcast_to(np.asarray(self.widths, dtype=float), (self.depth,))

    def sizes(self, width: int) -> tuple[int, ...]:
        """Neurons of every hidden state at the given overall ``width``."""
        width = checks.integer("width", width, 1)
        return tuple(max(1, round(width * a)) for a in self.relative_widths)

    @property
    def kind(self) -> str:
        """``"RNN"`` with tied weights, ``"DNN"`` with untied ones, ``"ResNet"`` with skip connections."""
        if self.branch is not None:
            return "ResNet"
        return "RNN" if self.weights == "tied" else "DNN"

    def __str__(self) -> str:
        show = lambda v: f"{v:g}" if np.ndim(v) == 0 else "(" + ", ".join(f"{x:g}" for x in v) + ")"  # noqa: E731
        readout = "read out at single neurons"
        if self.readout_variance is not None:
            readout = f"readout variance {show(self.readout_variance)} (bias {show(self.readout_bias_variance)})"
        lines = [
            f"{self.kind}: {self.depth} hidden state{'s' * (self.depth > 1)}, activation {self.activation}",
            f"  variances  weights {show(self.weight_variance)} ({self.weights}), inputs {show(self.input_variance)} "
            f"({self.inputs}), biases {show(self.bias_variance)} ({self.biases})",
            f"  output     {readout}",
        ]
        if self.branch is not None:
            lines.append(f"  branch     {show(self.branch)} on top of skip connections")
        if isinstance(self.widths, tuple):
            lines.append(f"  widths     {show(self.widths)} relative")
        return "\n".join(lines)


def DNN(
    depth: int,
    activation: str | Activation = "relu",
    *,
    weight_variance: Variance = 1.0,
    input_variance: Variance = 1.0,
    readout_variance: float | None = 1.0,
    bias_variance: Variance = 0.0,
    readout_bias_variance: float | None = None,
    weights: str = "untied",
    biases: str = "untied",
    inputs: str = "tied",
    widths: Variance = 1.0,
) -> Network:
    """A deep network: weights and biases drawn anew in each of ``depth`` layers. See `Network` for the keywords."""
    return Network(**locals())


def RNN(
    depth: int,
    activation: str | Activation = "relu",
    *,
    weight_variance: Variance = 1.0,
    input_variance: Variance = 1.0,
    readout_variance: float | None = 1.0,
    bias_variance: Variance = 0.0,
    readout_bias_variance: float | None = None,
    weights: str = "tied",
    biases: str = "tied",
    inputs: str = "tied",
    widths: Variance = 1.0,
) -> Network:
    """A recurrent network: one weight matrix for all of ``depth`` time steps. See `Network` for the keywords."""
    return Network(**locals())


def ResNet(
    depth: int,
    activation: str | Activation = "linear",
    branch: float = 1.0,
    *,
    weight_variance: Variance = 1.0,
    input_variance: Variance = 1.0,
    readout_variance: float | None = 1.0,
    bias_variance: Variance = 0.0,
    readout_bias_variance: float | None = None,
    weights: str = "untied",
    biases: str = "untied",
    inputs: str = "tied",
    widths: Variance = 1.0,
) -> Network:
    """A deep network with skip connections: each layer adds ``branch`` times its own. See `Network` for the keywords."""
    checks.nonnegative("branch", branch, positive=True)  # None would make a network without skip connections
    return Network(**locals())
