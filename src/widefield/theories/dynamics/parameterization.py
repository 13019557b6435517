r"""One network, several parameterisations: the same function trained, other multipliers, initial scales and rates.

A layer :math:`m\,W` with :math:`W_{ij}(0) \sim N(0, s^2)` and rate :math:`r` trains as :math:`(m\theta, s/\theta, r/\theta^2)`
for any :math:`\theta`. Appendix N of Bordelon & Pehlevan (2022).
"""

from dataclasses import dataclass

import numpy as np

from widefield.question import checks
from widefield.question.network import Network

FORMS = ("mean_field", "ntk", "mup")


@dataclass(frozen=True)
class Layer:
    """How one kind of parameter enters: ``multiplier`` · W, standard deviation of W at the start, its learning rate."""

    multiplier: float
    initial_scale: float
    rate: float


@dataclass(frozen=True)
class Parameterization:
    """All layers of one network in one form, for descent on the summed loss ½Σ|f − y|²."""

    form: str
    inputs: Layer
    hidden: Layer
    readout: Layer
    biases: Layer

    def __str__(self) -> str:
        rows = [f"{self.form}: multiplier, initial standard deviation, learning rate of plain descent on ½Σ|f − y|²"]
        for name in ("inputs", "hidden", "readout", "biases"):
            layer = getattr(self, name)
            rows.append(f"  {name:<8} {layer.multiplier:<12.6g} {layer.initial_scale:<12.6g} {layer.rate:.6g}")
        return "\n".join(rows)


def parameterization(
    network: Network, *, width: int, dimension: int, richness: float, rate: float, form: str = "mup"
) -> Parameterization:
    r"""Multipliers, initial scales and learning rates that realise `widefield.dynamics` in a network of ``width`` neurons.

    ``form``: ``"mean_field"``, the theory's own (unit weights, output :math:`1/(\gamma_0N)`, rate :math:`\eta\gamma_0^2N`
    for all); ``"mup"``, no multipliers, as deep-learning libraries have it (hidden rates independent of the width, readout
    rates falling as 1/N, input rates growing as N); ``"ntk"``, output :math:`1/\sqrt N` with the rest of the scale in
    the readout's weights. All three train the same function; tested on networks. Equal widths and variances per kind.
    """
    checks.choice("form", form, FORMS)
    if not isinstance(network, Network):
        raise ValueError(f"`network` must be a widefield.Network (DNN or RNN), got {type(network).__name__}.")
    network.refuse_branch("parameterization")
    n = checks.integer("width", width, 1)
    d = checks.integer("dimension", dimension, 1)
    gamma = checks.nonnegative("richness", richness, positive=True)
    raw = checks.nonnegative("rate", rate, positive=True) * gamma**2 * n
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
    return Parameterization(form, **layers)


def proportional_parameters(*, richness: float, rate: float, samples: int, dimension: int) -> tuple[float, float]:
    r"""(richness, rate) of `widefield.proportional` for a network that `widefield.dynamics` describes with these.

    :math:`\gamma_0^{\rm prop} = \sqrt D\,\gamma_0`, :math:`\eta^{\rm prop} = (P/D)\,\eta`: the one objective is a mean over
    samples, the other a sum, and the one output has a factor √D.
    """
    p, d = checks.integer("samples", samples, 1), checks.integer("dimension", dimension, 1)
    gamma = checks.nonnegative("richness", richness, positive=True)
    return gamma * np.sqrt(d), checks.nonnegative("rate", rate, positive=True) * p / d


def _one(network: Network, name: str) -> float:
    value = getattr(network, name)
    if isinstance(value, tuple) and len(set(value)) > 1:
        raise ValueError(f"`network` must have one {name} for all states here, got {value}.")
    return float(value[0] if isinstance(value, tuple) else value)
