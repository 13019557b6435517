r"""Training of one deep linear network, or of two with opposite targets, by gradient descent with explicit weights.

.. math::
    f_c(x) = \frac{1}{N_L\gamma_0 s_0}\, w^L_c \cdot \prod_{l=1}^{L-1}\Big(\frac{W^l}{\sqrt{N_l}}\Big)\, s_0 W^0 x, \qquad
    y_c(x) = s_0\, w^*_c\cdot x + \epsilon_c

Isotropic inputs: :math:`s_0 = 1/\sqrt D`, Eq. 1 of Bordelon & Pehlevan (2025) with the missing :math:`\sqrt D`; structured
inputs of covariance :math:`\mathrm{diag}\,\lambda_k`: :math:`s_0 = 1`, Eq. 89. A residual network has
:math:`1 + \beta W^l/\sqrt N` in the product, Eq. 16. Nothing here knows of the theory's responses.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg.blas import dger

DIVERGED = 1e12  # growth of the loss, relative to its first value, that no stable training shows


@dataclass(frozen=True)
class Model:
    """Sizes and scales: ``eigenvalues`` (D,) of the input covariance, ``input_scale`` s_0, ``sizes`` N_1 … N_L."""

    eigenvalues: np.ndarray
    input_scale: float
    sizes: tuple[int, ...]
    richness: float
    branch: float | None = None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of W^0 … W^{L−1}."""
        return list(zip(self.sizes, (len(self.eigenvalues), *self.sizes[:-1]), strict=True))

    @cached_property
    def scales(self) -> list[float]:
        """What multiplies W^0 … W^{L−1}."""
        branch = 1.0 if self.branch is None else self.branch
        return [self.input_scale, *(branch / math.sqrt(n) for n in self.sizes[:-1])]

    def population_loss(self, v: np.ndarray, label_noise: float) -> np.ndarray:
        """<Δ²> over inputs and label noise of the error vectors ``v`` (…, D)."""
        return self.input_scale**2 * (v * v) @ self.eigenvalues + label_noise


class Learner:
    """One network in training: ``weights`` W^0 … W^{L−1} and ``readout`` w^L, (channel, neuron)."""

    def __init__(self, model: Model, weights: Sequence[np.ndarray], readout: np.ndarray):
        self.model = model
        self.weights = [np.array(w, order="C") for w in weights]
        self.readout = np.array(readout)

    def backward(self) -> list[np.ndarray]:
        """g^1 … g^L of Eq. 26, each (channel, neuron)."""
        g = [self.readout]
        for w, scale in zip(self.weights[:0:-1], self.model.scales[:0:-1], strict=True):
            below = scale * (g[-1] @ w)
            g.append(below if self.model.branch is None else below + g[-1])
        return g[::-1]

    def forward(self, h0: np.ndarray) -> list[np.ndarray]:
        """h^0 … h^L of Eq. 26, the error-weighted inputs sent through the network, each (channel, neuron)."""
        h = [h0]
        for l, (w, scale) in enumerate(zip(self.weights, self.model.scales, strict=True)):
            above = scale * (h[-1] @ w.T)
            h.append(above if self.model.branch is None or l == 0 else above + h[-1])
        return h

    def predictor(self, g1: np.ndarray) -> np.ndarray:
        """The linear function that the network is, in the units of the target, (channel, D)."""
        return 1 / (self.model.sizes[-1] * self.model.richness * self.model.input_scale) * (g1 @ self.weights[0])

    def update(self, rate: float, g: Sequence[np.ndarray], h: Sequence[np.ndarray]) -> None:
        """One step of Eqs. 25 and 104; the raw learning rate is N_L γ0² ``rate``."""
        step = rate * self.model.richness
        for w, scale, error, signal in zip(self.weights, self.model.scales, g, h[:-1], strict=True):
            for error_c, signal_c in zip(error, signal, strict=True):
                dger(step * scale, signal_c, error_c, a=w.T, overwrite_a=1)  # in place: w is C-contiguous
        self.readout = self.readout + step * h[-1]


# Takes error vectors v (network, channel, D); gives h^0 of the same shape and the training loss (network, channel).
Gradient = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def population_gradient(model: Model, label_noise: float) -> Gradient:
    """Infinitely many inputs."""
    return lambda v: (model.eigenvalues * v, model.population_loss(v, label_noise))


def sample_gradient(model: Model, x: np.ndarray, noise: np.ndarray, signs: np.ndarray) -> Gradient:
    """Inputs ``x`` (sample, D) with label noise (channel, sample), whose sign follows the target's."""

    def gradient(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        errors = model.input_scale * (v.reshape(-1, v.shape[-1]) @ x.T).reshape(*v.shape[:-1], -1)
        errors += signs[:, None, None] * noise
        h0 = (errors.reshape(-1, len(x)) @ x).reshape(v.shape) / (len(x) * model.input_scale)
        return h0, np.mean(errors**2, axis=-1)

    return gradient


@dataclass
class Curves:
    """Rows of a training: losses (network, row, channel), ``g`` and ``h`` (network, row, channel, neuron) per layer.

    ``lasted`` counts the rows before the loss ran away; the losses after them are infinite.
    """

    train_loss: np.ndarray
    test_loss: np.ndarray
    g: list[np.ndarray]
    h: list[np.ndarray]
    lasted: int = 0


@np.errstate(over="ignore", invalid="ignore")
def train(
    learners: Sequence[Learner],
    targets: np.ndarray,
    gradients: Callable[[int], Gradient],
    rates: np.ndarray,
    *,
    label_noise: float,
    centered: bool,
    keep: bool,
    divisor: int = 1,
    advance: Callable[[int], None] = lambda finished: None,
) -> Curves:
    """Train ``learners`` side by side towards ``targets`` (network, channel, D), one row before each update and one after.

    ``gradients`` gives the gradient of a step: the same at all steps, or that of a fresh batch. Between two rows there
    are ``divisor`` updates, of as much smaller rates.
    """
    model = learners[0].model
    rows = (len(learners), len(rates) + 1, targets.shape[1])
    g_kept, h_kept = ([np.empty((*rows, n)) for n in model.sizes if keep] for _ in range(2))
    curves = Curves(np.full(rows, np.inf), np.full(rows, np.inf), g_kept, h_kept)
    origin, limit = np.zeros_like(targets), np.inf
    for t in range(len(rates) + 1):
        g, predictor = _backward(learners)
        if t == 0 and centered:
            origin = predictor
        v = targets - (predictor - origin)
        gradient = gradients(t)
        h0, train_loss = gradient(v)
        test_loss = model.population_loss(v, label_noise)
        limit = DIVERGED * test_loss.sum() if t == 0 else limit
        if not (test_loss.sum() <= limit and np.isfinite(train_loss).all()):
            break
        curves.train_loss[:, t], curves.test_loss[:, t], curves.lasted = train_loss, test_loss, t + 1
        last = t == len(rates)
        if keep or not last:
            h = [learner.forward(h0_n) for learner, h0_n in zip(learners, h0, strict=True)]
            for l in range(len(g_kept)):
                g_kept[l][:, t] = [of_network[l] for of_network in g]
                h_kept[l][:, t] = [of_network[l + 1] for of_network in h]
        if not last:
            _update(learners, rates[t] / divisor, g, h)
            for _ in range(divisor - 1):  # smaller updates between two rows
                g, predictor = _backward(learners)
                h0, _ = gradient(targets + origin - predictor)
                h = [learner.forward(h0_n) for learner, h0_n in zip(learners, h0, strict=True)]
                _update(learners, rates[t] / divisor, g, h)
        advance(1)
    return curves


def _backward(learners: Sequence[Learner]) -> tuple[list[list[np.ndarray]], np.ndarray]:
    """g^1 … g^L of every network, and the linear functions (network, channel, D) that they are."""
    g = [learner.backward() for learner in learners]
    return g, np.stack([learner.predictor(g_n[0]) for learner, g_n in zip(learners, g, strict=True)])


def _update(learners: Sequence[Learner], rate: float, g: Sequence[Any], h: Sequence[Any]) -> None:
    for learner, g_n, h_n in zip(learners, g, h, strict=True):
        learner.update(rate, g_n, h_n)


def correlations(vectors: Sequence[np.ndarray], lasted: int) -> np.ndarray:
    """Averages over neurons and networks, (layer, row, row, channel, channel); infinite from row ``lasted`` on."""
    n_networks, total, n_channels, _ = vectors[0].shape
    out = np.full((len(vectors), total, total, n_channels, n_channels), np.inf)
    for l, values in enumerate(vectors):
        flat = values[:, :lasted].reshape(n_networks, lasted * n_channels, -1)
        gram = (flat @ flat.swapaxes(1, 2)).mean(axis=0) / values.shape[-1]
        out[l, :lasted, :lasted] = gram.reshape(lasted, n_channels, lasted, n_channels).swapaxes(1, 2)
    return out
