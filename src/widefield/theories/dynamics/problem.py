"""What is asked of the dynamics, checked, and as the arrays of the march."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from widefield.answer.boundary import memory_budget, require_memory
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.question.training import Training
from widefield.theories.dynamics.inputs import Inputs
from widefield.theories.dynamics.march.step import Physics, Shape

# Variance, relative to a vector's own, below which no new direction opens. Leaving out a share ε of features and ten times
# that of gradients moves linear networks of 2 … 16 layers by 10 … 550 ε (`LEFT_OUT`); it shrinks as the sampling error does,
# and with the square of the richness, by which training moves features.
SAMPLED, PER_ROOT, BACKWARD, LINEAR = 1e-6, 3.2e-5, 10.0, 1e-20
WHITE = 1e-12  # largest deviation of an input kernel from a multiple of one, relative to it
PER_STEP = 1000  # bytes that a march leaves at every step, whatever is asked for
LEFT_OUT = 600.0  # times ε: error of a field, relative to its largest entry, from directions that were not opened


Loss = Callable[[Array, Array], Array]


def squared(f: Array, y: Array) -> Array:
    """½|f − y|² of one sample, summed over outputs."""
    return 0.5 * jnp.sum((f - y) ** 2)


def logistic(f: Array, y: Array) -> Array:
    """ln(1 + e^{−yf}), labels ±1."""
    return jnp.sum(jnp.logaddexp(0.0, -y * f))


def cross_entropy(f: Array, y: Array) -> Array:
    """−Σ y ln softmax(f), labels the probabilities of the classes."""
    return -jnp.sum(y * jax.nn.log_softmax(f))


LOSSES: dict[str, Loss] = {"squared": squared, "logistic": logistic, "cross_entropy": cross_entropy}


def as_loss(loss: Any, n_outputs: int) -> Loss:
    """A named loss, or a user's function of one sample's prediction and label (output,), once it is seen to work."""
    if not callable(loss):
        return LOSSES[loss]
    one = jax.ShapeDtypeStruct((n_outputs,), jnp.float64)
    try:
        hash(loss)  # compilations are found by it
        jax.eval_shape(jax.grad(loss), one, one)
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"`loss` must be a differentiable JAX function of one sample's outputs and label to one number, but: {why}"
        ) from error
    return loss


def total_loss(loss: Loss, f: Array, y: Array) -> Array:
    """The sum over (readout, sample)."""
    return jax.vmap(jax.vmap(loss))(f, y).sum()


@dataclass(frozen=True, eq=False)
class Problem:
    """One training run. ``rates`` and ``richness`` begin as those of the training: limits are made of several of them."""

    network: Network
    task: Task
    training: Training
    inputs: Inputs
    loss: Loss
    rates: np.ndarray  # one more than updates: the row after the last
    richness: float
    responses: bool = True  # False: A = B = 0
    left_out: float = SAMPLED

    @property
    def exact(self) -> bool:
        """Whether coordinates replace sampled paths: linear networks, unless noise keeps entering."""
        return self.network.activation.known_as("linear") and self.training.temperature == 0

    @cached_property
    def readouts(self) -> tuple[int, ...]:
        """States that are read out, ascending."""
        return tuple(sorted(self.task.supervised_states(self.network.depth)))

    @cached_property
    def labels(self) -> np.ndarray:
        """(readout, sample, output), readouts ascending."""
        states = self.task.supervised_states(self.network.depth)
        return np.moveaxis(self.task.labels(), 1, 0)[np.argsort(states)]

    @property
    def n_channels(self) -> int:
        """Pairs of a readout and an output."""
        return len(self.readouts) * self.labels.shape[2]

    @cached_property
    def by_layer(self) -> bool:
        """A deep network driven at the first state and read out at one: layers suffice, no pairs of states."""
        driven = self.task.sequences(self.network.depth).shape[1]
        return self.network.weights == "untied" and driven == 1 and len(self.readouts) == 1

    @cached_property
    def white(self) -> bool:
        """Linear, squared loss, no biases, one label per sample, more than two samples, and inputs of any pair of states with a
        kernel proportional to one.
        """
        n, several = self.task.n_samples, np.any(self.network.bias_variances) or self.labels.size != self.task.n_samples
        if not self.exact or self.loss is not squared or several or n < 3 or not self.labels.any():
            return False
        x = self.task.sequences(self.network.depth)
        return n <= x.shape[2] and _is_white(x[:8]) and _is_white(x)

    @property
    def least_output(self) -> float:
        """Outputs smaller than this are zero up to round-off, in units of the labels or of one neuron's."""
        return 1e-12 * max(float(np.abs(self.labels).max()), 1 / abs(self.richness))

    @cached_property
    def shape(self) -> Shape:
        """What a march is compiled for."""
        network = self.network
        tied = network.weights == "tied"
        driven = self.task.sequences(network.depth).shape[1]
        shared = (network.inputs == "tied" and driven > 1) or (
            network.biases == "tied" and network.bias_variances.any()
        )
        return Shape(
            activation=network.activation.function, gradient=_gradient(self.loss),
            matrices=tuple(0 if tied else k for k in range(network.depth - 1)), readouts=self.readouts,
            n_outputs=self.labels.shape[2], exact=self.exact,
            shared_inputs=bool(shared), responses=self.responses, langevin=self.training.temperature > 0,
            momentum=self.training.momentum_time is not None,
        )  # fmt: skip

    def losses(self, outputs: np.ndarray) -> np.ndarray:
        """The loss (step,) of outputs (step, state, sample, output) of all inputs."""
        read = jnp.asarray(outputs[:, list(self.readouts), : self.task.n_samples])
        return np.asarray(jax.vmap(lambda f: total_loss(self.loss, f, jnp.asarray(self.labels)))(read))

    def tolerances(self, n_paths: int) -> tuple[float, float]:
        """Variance that may be left out of a feature and of a gradient, relative to its own."""
        if self.exact:
            return LINEAR, LINEAR
        share = min(self.left_out, PER_ROOT / np.sqrt(n_paths)) * min(1.0, self.richness**2)
        return share, BACKWARD * share

    @cached_property
    def physics(self) -> Physics:
        """Arrays of the march; the tolerances are those of one path."""
        number = lambda value: jnp.asarray(value, jnp.float64)  # noqa: E731
        network, tau = self.network, self.training.momentum_time
        a = network.relative_widths
        return Physics(
            richness=number(self.richness), inputs=number(self.inputs.root),
            weight_variance=number(network.weight_variances), readout_variance=number(network.readout_variance),
            shares=number(a[1:] / a[:-1]), labels=number(self.labels), decay=number(self.training.weight_decay),
            momentum=number(0.0 if tau is None else 1 / tau), scale=number(self.training.initial_scale),
            temperature=number(self.training.temperature), tolerance=number(self.tolerances(1)),
        )  # fmt: skip


@lru_cache
def _gradient(loss: Loss):
    """One object per loss, so that a march compiles once."""
    return jax.vmap(jax.vmap(jax.grad(loss)))


def _is_white(x: np.ndarray) -> bool:
    """Whether inputs (sample, state, D) have kernels proportional to one between all pairs of states."""
    n, n_states = x.shape[:2]
    size = np.sum(x**2) / (n * n_states)
    grams = (x[:, k] @ x[:, l].T for k in range(n_states) for l in range(k, n_states))
    white = (np.abs(gram - np.trace(gram) / n * np.eye(n)).max() <= WHITE * size for gram in grams)
    return bool(size > 0) and all(white)


def problem(network: Network, task: Task, training: Training, responses: bool = True) -> Problem:
    """The question, checked."""
    network.refuse_branch("dynamics")
    if network.readout_variance is None:
        raise ValueError("`network` must have a readout (readout_variance) in dynamics: training needs an output.")
    if network.readout_bias_variance:
        raise ValueError("`network` must have readout_bias_variance=0 in dynamics: the readout has no bias.")
    training.refuse("dynamics", "batches")
    if task.y is None:
        raise ValueError("`task` must have labels `y` in dynamics: they drive the training.")
    driven = task.sequences(network.depth).shape[1]
    supervised = task.supervised_states(network.depth)
    if len(set(network.relative_widths)) > 1 and (driven > 1 or supervised != (network.depth - 1,)):
        raise ValueError("`widths` must be equal unless the input is at the first state and the readout at the last.")
    scale, n = (
        training.initial_scale,
        2 + (network.depth - 1 if network.weights == "untied" else min(network.depth - 1, 1)),
    )
    if np.ndim(scale) and np.size(scale) != n:
        raise ValueError(f"`initial_scale` must be a number or {n} of them (input, hidden, readout), got {scale!r}.")
    if np.ndim(scale) and network.bias_variances.any():
        raise ValueError("`initial_scale` must be one number where the network has biases.")
    if training.richness == 0:
        raise ValueError('`richness` must be a finite positive number, got 0: its limit at 0 is `method="lazy"`.')
    advice = f"{memory_budget() // PER_STEP} steps would fit."
    require_memory(PER_STEP * training.steps, f"{training.steps:g} `steps`", advice)
    rates, tau = np.append(training.rates, training.rates[-1]), training.momentum_time
    if tau is not None and rates.max() > tau:
        raise ValueError(f"`momentum_time` must be at least the rate {rates.max():g}, got {tau!r}.")
    function = as_loss(training.loss, task.labels().shape[-1])
    for name, y in (("y", task.labels()), ("y_test", task.y_test)):
        if y is not None and not callable(training.loss):
            _check_labels(name, y, training.loss)
    return Problem(network, task, training, Inputs(network, task), function, rates, training.richness, responses)


def _check_labels(name: str, y: np.ndarray, loss: str) -> None:
    if loss == "logistic" and not np.isin(y, (-1.0, 1.0)).all():
        raise ValueError(f"`{name}` must hold labels -1 and 1 with loss='logistic'.")
    if loss == "cross_entropy" and (y.shape[-1] < 2 or (y < 0).any() or not np.allclose(y.sum(axis=-1), 1)):
        raise ValueError(f"`{name}` must hold class probabilities over two or more outputs with loss='cross_entropy'.")
