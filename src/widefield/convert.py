r"""One question in the conventions of several theories: other variances, rates and temperatures, the same network.

Every conversion is a question with a certificate: its ``residual`` is the identity that the conversion rests on, evaluated again
from what is returned, and is a rounding.
"""

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from widefield.answer.certificate import Certificate, Check, Status
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.training import Training

__all__ = ["Conversion", "Parameterization", "bayes", "equilibrium", "parameterization", "proportional"]

FORMS = ("mean_field", "ntk", "mup")
ROUNDING = 1e-12  # of the identities, relative
SMALLEST = 1e-18  # of what is converted; its inverse is the largest
VARIANCES = ("weight_variance", "input_variance", "readout_variance", "bias_variance")


@dataclass(frozen=True, eq=False)
class Conversion:
    """A question in another theory's conventions: what of ``network``, ``training`` and ``temperature`` it needs."""

    certificate: Certificate
    network: Network | None = None
    training: Training | None = None
    temperature: float | None = None

    @property
    def status(self) -> Status:
        """Whether the identity holds."""
        return self.certificate.status

    def __str__(self) -> str:
        parts = [self.certificate, self.network, self.training]
        last = [] if self.temperature is None else [f"temperature {self.temperature:g}"]
        return "\n".join([*(str(part) for part in parts if part is not None), *last])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class Layer:
    """How one kind of parameter enters: ``multiplier`` · W, standard deviation of W at the start, its learning rate."""

    multiplier: float
    initial_scale: float
    rate: float


@dataclass(frozen=True, eq=False)
class Parameterization(Conversion):
    """All layers of one network in one form, for descent on the summed loss ½Σ|f − y|²."""

    form: str = "mean_field"
    inputs: Layer = Layer(1.0, 1.0, 1.0)
    hidden: Layer = Layer(1.0, 1.0, 1.0)
    readout: Layer = Layer(1.0, 1.0, 1.0)
    biases: Layer = Layer(1.0, 1.0, 1.0)

    def __str__(self) -> str:
        rows = [f"{self.form}: multiplier, initial standard deviation, learning rate of plain descent on ½Σ|f − y|²"]
        for name in ("inputs", "hidden", "readout", "biases"):
            layer = getattr(self, name)
            rows.append(f"  {name:<8} {layer.multiplier:<12.6g} {layer.initial_scale:<12.6g} {layer.rate:.6g}")
        return "\n".join([str(self.certificate), *rows])


def bayes(network: Network, training: Training) -> Conversion:
    r"""The Bayesian network and temperature whose posterior is the law of Langevin ``training`` at long times.

    .. math::  u \to \frac T\lambda u, \quad w \to \frac T\lambda w, \quad v \to \frac T{\lambda\gamma_0^2}v, \quad
               \kappa = T/\gamma_0^2

    Eq. (dynamics.34); Appendix K.3 of Bordelon & Pehlevan (2022), with β = 1/T and its λ = weight decay / T. Two printed
    equations are wrong: after (118) the factor is γ0²β²/λ, not half of it, and the hidden layers of (117), (120) and (121)
    lack 1/λ, which matters unless λ = 1. ``wf.posterior(c.network, task, temperature=c.temperature)`` answers it.

    Error: none for a small rate; the finite rate η shifts variances by a relative ηλ/2.
    Limits: the squared loss; time goes to infinity before the width, in `widefield.dynamics` after it.
    """
    start = time.perf_counter()
    _check("convert.bayes", network, training, "batches", "loss", "momentum_time", "initial_scale")
    gamma, decay, T = (_positive(training, name) for name in ("richness", "weight_decay", "temperature"))
    scaled = _scaled(network, {name: T / decay / (gamma**2 if name == "readout_variance" else 1) for name in VARIANCES})
    kappa = T / gamma**2
    # the Gibbs weight exp(-(λ|θ|²/2 + γ0²N·loss)/T) in its parts: of the weights, of the readout, of the loss
    assert scaled.readout_variance is not None and network.readout_variance is not None
    pairs = [(decay * float(scaled.input_variances[0]), T * float(network.input_variances[0])), (kappa * gamma**2, T)]
    pairs += [(decay * gamma**2 * scaled.readout_variance, T * network.readout_variance)]
    return Conversion(_certificate("convert.bayes", pairs, start), scaled, temperature=kappa)


def equilibrium(network: Network, training: Training) -> Conversion:
    r"""The random network whose kernels are those of Langevin ``training`` at long times and small richness.

    .. math:: \langle\theta^2\rangle = \frac{2\eta T}{1-(1-\eta\lambda)^2}, \qquad
              \langle\theta(t)\theta(s)\rangle = \langle\theta^2\rangle(1-\eta\lambda)^{|t-s|}

    Eq. (dynamics.33); Sec. K.2 of Bordelon & Pehlevan (2022): equal-time kernels are those of the prior with all variances
    multiplied by :math:`\langle\theta^2\rangle`, which is :math:`T/\lambda` (the paper's 1/λ) for a small rate.

    Limits: richness → 0 after width → ∞; at finite richness training moves kernels away from it. A constant rate.
    """
    start = time.perf_counter()
    _check("convert.equilibrium", network, training, "batches", "momentum_time")
    eta, decay, T = _rate(training), *(_positive(training, name) for name in ("weight_decay", "temperature"))
    if eta * decay >= 2:
        raise ValueError(
            f"`weight_decay` times `rate` must be below 2, where weights have a stationary law, got {eta * decay:g}."
        )
    size = 2 * T / (decay * (2 - eta * decay))
    pairs = [((1 - eta * decay) ** 2 * size + 2 * eta * T, size)]  # one more update leaves the variance as it is
    return Conversion(
        _certificate("convert.equilibrium", pairs, start), _scaled(network, dict.fromkeys(VARIANCES, size))
    )


def proportional(training: Training, *, samples: int, dimension: int) -> Conversion:
    r"""The training of `widefield.proportional` for a network that `widefield.dynamics` describes with ``training``.

    .. math:: \gamma_0^{\rm prop} = \sqrt D\,\gamma_0, \qquad \eta^{\rm prop} = \frac PD\,\eta

    Eq. (dynamics.35): the one objective is a mean over the P ``samples``, the other a sum, and the one output has a factor √D,
    D being the ``dimension`` of the inputs.
    """
    start = time.perf_counter()
    if not isinstance(training, Training):
        raise ValueError(f"`training` must be a widefield.Training, got {type(training).__name__}.")
    training.refuse(
        "convert.proportional", "batches", "weight_decay", "momentum_time", "temperature", "loss", "initial_scale"
    )
    p, d = _count("samples", samples), _count("dimension", dimension)
    gamma = _positive(training, "richness")
    for rate in (training.rates.min(), training.rates.max()):
        _moderate("rate", float(rate))
    changed = replace(training, richness=gamma * np.sqrt(d), rate=training.rate * p / d)  # type: ignore[operator]
    # output 1/γ0 against √D/γ0', update of a weight ηγ0² against η'γ0'²/P
    pairs = [(np.sqrt(d) / changed.richness, 1 / gamma)]
    pairs += [(changed.rates[0] * changed.richness**2 / p, training.rates[0] * gamma**2)]
    return Conversion(_certificate("convert.proportional", pairs, start), training=changed)


def parameterization(
    network: Network, training: Training, *, width: int, dimension: int, form: str = "mup"
) -> Parameterization:
    r"""Multipliers, initial scales and learning rates that realize `widefield.dynamics` in a network of ``width`` neurons.

    A layer :math:`m\,W` with :math:`W_{ij}(0) \sim N(0, s^2)` and rate :math:`r` trains as
    :math:`(m\theta, s/\theta, r/\theta^2)` for any :math:`\theta`: Eq. (dynamics.36); Appendix N of Bordelon & Pehlevan (2022).
    ``form``: ``"mean_field"``, the theory's own (unit weights, output :math:`1/(\gamma_0N)`, rate :math:`\eta\gamma_0^2N`
    for all); ``"mup"``, no multipliers, as deep-learning libraries have it (hidden rates independent of the width, readout
    rates falling as 1/N, input rates growing as N); ``"ntk"``, output :math:`1/\sqrt N` with the rest of the scale in
    the readout's weights. All three train the same function; tested on networks. ``dimension`` is that of the inputs.
    Limits: equal widths, one variance per kind of parameter, a constant rate, plain descent.
    """
    start = time.perf_counter()
    checks.choice("form", form, FORMS)
    extra = ("batches", "weight_decay", "momentum_time", "temperature", "initial_scale")
    _check("convert.parameterization", network, training, *extra, trained=False)
    n, d = _count("width", width), _count("dimension", dimension)
    gamma = _positive(training, "richness")
    raw = _rate(training) * gamma**2 * n
    if network.readout_variance is None:
        raise ValueError("`network` must have a readout (readout_variance).")
    u, w, b = (_one(network, name) for name in ("input_variance", "weight_variance", "bias_variance"))
    base = {
        "inputs": np.sqrt(u / d), "hidden": np.sqrt(w / n), "readout": np.sqrt(network.readout_variance) / (gamma * n),
        "biases": np.sqrt(b),
    }  # fmt: skip
    shift = {name: 1.0 for name in base}
    if form == "mup":
        shift = {name: 1 / m if m else 1.0 for name, m in base.items()}
    elif form == "ntk":
        shift["readout"] = gamma * np.sqrt(n)
    layers = {name: Layer(m * shift[name], 1 / shift[name], raw / shift[name] ** 2) for name, m in base.items()}
    pairs = [(layers[name].multiplier * layers[name].initial_scale, m) for name, m in base.items()]
    pairs += [(layers[name].multiplier ** 2 * layers[name].rate, m**2 * raw) for name, m in base.items()]
    certificate = _certificate("convert.parameterization", pairs, start)
    return Parameterization(certificate, network, training, None, form, **layers)


def _check(name: str, network: Any, training: Any, *refused: str, trained: bool = True) -> None:
    if not isinstance(network, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or RNN), got {type(network).__name__}.")
    if not isinstance(training, Training):
        raise ValueError(f"`training` must be a widefield.Training, got {type(training).__name__}.")
    network.refuse_branch(name)
    training.refuse(name, *refused)
    if trained and (network.readout_variance is None or network.readout_bias_variance):
        raise ValueError("`network` must have a readout (readout_variance) without a bias (readout_bias_variance=0).")


def _positive(training: Training, name: str) -> float:
    return _moderate(name, checks.nonnegative(name, getattr(training, name), positive=True))


def _moderate(name: str, value: float) -> float:
    """A number whose squares and products with others are numbers too."""
    if not SMALLEST <= value <= 1 / SMALLEST:
        raise ValueError(f"`{name}` must lie between {SMALLEST:g} and {1 / SMALLEST:g} in a conversion, got {value:g}.")
    return value


def _count(name: str, value: Any) -> int:
    return int(_moderate(name, checks.integer(name, value, 1)))


def _rate(training: Training) -> float:
    if len(set(training.rates)) > 1:
        raise ValueError(
            f"`rate` of the training must be constant, got {training.rates.min():g} … {training.rates.max():g}."
        )
    return _moderate("rate", float(training.rates[0]))


def _one(network: Network, name: str) -> float:
    values = set(np.atleast_1d(getattr(network, name)).tolist())
    if len(values) > 1:
        raise ValueError(f"`network` must have one {name} for all states here, got {getattr(network, name)}.")
    return float(values.pop())


def _scaled(network: Network, sizes: dict[str, float]) -> Network:
    """The network with variances times ``sizes``; the readout keeps its bias."""
    given = {name: getattr(network, name) for name in sizes}
    multiplied: dict[str, Any] = {
        name: tuple(float(v) * sizes[name] for v in value) if np.ndim(value) else float(value) * sizes[name]
        for name, value in given.items()
    }
    return replace(network, **multiplied)


def _certificate(theory: str, pairs: Sequence[tuple[float, float]], start: float) -> Certificate:
    """The largest relative difference within ``pairs`` that an identity makes equal."""
    residual = max(abs(a - b) / max(abs(b), 1e-300) for a, b in pairs)
    return Certificate(theory, {"residual": Check(residual, ROUNDING)}, wall_time=time.perf_counter() - start)
