r"""A batch of finite networks under training: forward pass, backpropagation through states, updates. Explicit weights.

Every array has a leading replicate axis; samples are rows. Each parameter is stored once and used at one or several
states, so tied and untied networks are one code.
"""

from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy.linalg.blas import dgemm

from widefield.question.network import Network
from widefield.simulate.networks.activations import activate, slope
from widefield.simulate.networks.forward import of_use
from widefield.simulate.networks.streams import HIDDEN, NOISE, READOUT, normals, streams

Arrays = list[np.ndarray]
Added = dict[int, np.ndarray]  # by state, (replicate, training sample, neuron)


@dataclass(frozen=True)
class Model:
    """What all networks share. ``inputs`` (driven state, sample, coordinate) carry 1/√D, test inputs come last."""

    net: Network
    sizes: tuple[int, ...]
    inputs: np.ndarray
    n_train: int
    n_outputs: int
    richness: float

    @property
    def gain(self) -> float:
        r""":math:`\gamma_0^2 N`, what the rate multiplies the gradient with; N is the last layer's width."""
        return self.richness**2 * self.sizes[-1]

    @property
    def readout_scale(self) -> float:
        r""":math:`\sqrt v / (\gamma_0 N)`."""
        return float(np.sqrt(self.net.readout_variance or 0.0) / (self.richness * self.sizes[-1]))

    @cached_property
    def scales(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Multipliers of weights (transition), input weights (driven state) and biases (state)."""
        weights = np.sqrt(self.net.weight_variances / np.asarray(self.sizes[:-1]))
        return weights, np.sqrt(self.net.input_variances[: len(self.inputs)]), np.sqrt(self.net.bias_variances)

    @property
    def shapes(self) -> tuple[list[tuple[int, int]], ...]:
        """Shapes of weights, input weights, biases and readout: one where tied, one per use where untied."""
        net, n = self.net, self.sizes
        weights = list(pairwise(n))[: 1 if net.weights == "tied" else None]
        inputs = [(self.inputs.shape[-1], k) for k in n[: 1 if net.inputs == "tied" else len(self.inputs)]]
        biases = [(1, k) for k in n[: 1 if net.biases == "tied" else None]] if net.bias_variances.any() else []
        return weights, inputs, biases, [(n[-1], self.n_outputs)]

    @property
    def n_parameters(self) -> int:
        """Numbers in the parameters of one network."""
        return sum(m * n for group in self.shapes for m, n in group)


@dataclass(frozen=True)
class Step:
    """One update: ``share`` = η/τ of the gradient enters the velocity (None: no momentum), ``noise`` = √(2ηT)."""

    rate: float
    keep: float  # 1 − ηλ
    share: float | None
    noise: float


@dataclass(frozen=True)
class Pass:
    """Pre-activations and activations of all inputs, one (replicate, sample, neuron) array per state."""

    h: Arrays
    phi: Arrays


class Networks:
    """The networks number ``replicates`` of a simulation."""

    def __init__(
        self, model: Model, seed: int, replicates: Sequence[int], initial_scale: Sequence[float], n_padded: int
    ):
        self.model, self.n_padded, self.seed, self.replicates = model, n_padded, seed, replicates
        hidden, readout = (streams(seed, replicates, purpose) for purpose in (HIDDEN, READOUT))
        self.noise_streams = streams(seed, replicates, NOISE)
        weights, inputs, biases, outputs = model.shapes
        # Inputs first: then a longer network has the same first layer.
        first, *inner, last = initial_scale
        self.input_weights = [first * normals(hidden, *shape) for shape in inputs]
        self.weights = [scale * normals(hidden, *shape) for scale, shape in zip(inner, weights, strict=True)]
        self.biases = [first * normals(hidden, *shape) for shape in biases]
        self.readout = [last * normals(readout, *shape) for shape in outputs]
        self.velocities: dict[tuple[str, int], np.ndarray] = {}

    def forward(self, added: Added | None = None) -> Pass:
        r""":math:`h^k = \sqrt{w/N}\, W \varphi(h^{k-1}) + \sqrt{u/D}\, U x^k + \sqrt b\, b^k`, plus ``added`` by state."""
        (weights, inputs, biases), result = self.model.scales, Pass([], [])
        for k, n in enumerate(self.model.sizes):
            h = np.zeros((len(self.noise_streams), self.model.inputs.shape[1], n))
            if k:
                h += weights[k - 1] * (result.phi[-1] @ of_use(self.weights, k - 1))
            if k < len(inputs):
                h += inputs[k] * (self.model.inputs[k] @ of_use(self.input_weights, k))
            if self.biases:
                h += biases[k] * of_use(self.biases, k)
            if added is not None and k in added:
                h[:, : self.model.n_train] += added[k]
            result.h.append(h)
            result.phi.append(activate(self.model.net.activation, h, self.n_padded))
        return result

    def outputs(self, phi: Arrays, states: Sequence[int]) -> np.ndarray:
        r""":math:`f^k = \sqrt v\, V\varphi(h^k) / (\gamma_0 N)` at ``states``, (replicate, state, sample, output)."""
        return np.stack([self.model.readout_scale * (phi[k] @ self.readout[0]) for k in states], axis=1)

    def slopes(self, h: Arrays) -> Arrays:
        """Slopes of the activation on the training inputs."""
        return [slope(self.model.net.activation, x[:, : self.model.n_train], self.n_padded) for x in h]

    def backward(self, slopes: Arrays, pulls: dict[int, np.ndarray], added: Added | None = None) -> Arrays:
        r""":math:`\sum_{c\mu} p^c_\mu\, \partial f^c_\mu / \partial h^k_\mu` for every state.

        ``pulls`` gives :math:`p` (replicate, sample, output) for the states that are read out. ``added`` enters by
        state before its slopes.
        """
        result = [np.zeros_like(s) for s in slopes]
        for k in reversed(range(max(pulls) + 1)):
            self._send(result, k, pulls, result)
            if added is not None and k in added:
                result[k] += added[k]
            result[k] *= slopes[k]
        return result

    def before_slopes(self, sent: Arrays, pulls: dict[int, np.ndarray]) -> Arrays:
        """What `backward` of ``pulls``, which gave ``sent``, had at every state before its slopes."""
        result = [np.zeros_like(e) for e in sent]
        for k in range(max(pulls) + 1):
            self._send(result, k, pulls, sent)
        return result

    def _send(self, result: Arrays, k: int, pulls: dict[int, np.ndarray], sent: Arrays) -> None:
        """Add to state ``k`` what the next state and its readout send back."""
        if k < max(pulls):
            result[k] += self.model.scales[0][k] * (sent[k + 1] @ of_use(self.weights, k).swapaxes(1, 2))
        if k in pulls:
            result[k] += self.model.readout_scale * (pulls[k] @ self.readout[0].swapaxes(1, 2))

    def copy(self) -> "Networks":
        """The same networks, to be trained on their own with the same noise."""
        other = copy(self)
        other.noise_streams = deepcopy(self.noise_streams)
        for name in ("input_weights", "weights", "biases", "readout"):
            setattr(other, name, [theta.copy() for theta in getattr(self, name)])
        other.velocities = {key: velocity.copy() for key, velocity in self.velocities.items()}
        return other

    def update(self, phi: Arrays, force: Arrays, pulls: dict[int, np.ndarray], step: Step) -> None:
        r"""Move all parameters along :math:`-\nabla\mathcal L`, where ``force`` is `backward` of ``pulls`` Δ."""
        model, (weights, inputs, biases) = self.model, self.model.scales
        phi = [x[:, : model.n_train] for x in phi]
        one = np.ones((model.n_train, 1))
        self._move("weights", [(phi[k], weights[k] * force[k + 1]) for k in range(len(weights))], step)
        driven = [(model.inputs[k, : model.n_train], inputs[k] * force[k]) for k in range(len(inputs))]
        self._move("input_weights", driven, step)
        self._move("biases", [(one, b * e) for b, e in zip(biases, force, strict=True)], step)
        self._move("readout", [(phi[k], model.readout_scale * p) for k, p in pulls.items()], step)

    def _move(self, name: str, uses: list[tuple[np.ndarray, np.ndarray]], step: Step) -> None:
        """Update the parameters ``name``; a use (a, b) contributes the gradient aᵀb."""
        parameters: Arrays = getattr(self, name)
        for i, theta in enumerate(parameters):
            mine = uses if len(parameters) == 1 else uses[i : i + 1]
            left = [np.broadcast_to(a, (len(theta), *a.shape[-2:])) for a, _ in mine]
            right = [b for _, b in mine]
            single = len(mine) == 1
            a, b = (left[0], right[0]) if single else (np.concatenate(left, axis=1), np.concatenate(right, axis=1))
            if step.share is None:
                _accumulate(theta, a, b, step.rate * self.model.gain, step.keep)
            else:
                velocity = self.velocities.setdefault((name, i), np.zeros_like(theta))
                _accumulate(velocity, a, b, step.share * self.model.gain, 1 - step.share)
                theta *= step.keep
                theta += step.rate * velocity
            if step.noise:
                theta += step.noise * normals(self.noise_streams, *theta.shape[1:])


def _accumulate(theta: np.ndarray, a: np.ndarray, b: np.ndarray, factor: float, keep: float) -> None:
    r""":math:`\theta \leftarrow \text{keep}\,\theta + \text{factor}\, a^\top b` in one pass over memory, per network."""
    for target, x, y in zip(theta, a, b, strict=True):
        dgemm(factor, y.T, x.T, beta=keep, c=target.T, trans_b=True, overwrite_c=True)
