"""The dictionary from the parameters of Appendix K.3 of Bordelon & Pehlevan (2022) to those used here."""

from typing import NamedTuple

from widefield.question import checks


class BayesParameters(NamedTuple):
    """Variances and temperature, in the order in which `bayes_parameters` returns them."""

    input_variance: float
    weight_variance: float
    readout_variance: float
    temperature: float


def bayes_parameters(richness: float, inverse_temperature: float, ridge: float) -> BayesParameters:
    r"""Variances and temperature of a Langevin-trained network with ``richness`` γ0, β and weight decay ``ridge`` λ.

    .. math::  u = w = 1/\lambda, \qquad v = 1/(\lambda\gamma_0^2), \qquad \kappa = 1/(\gamma_0^2\beta)

    For the loss ½(f − y)². Two printed equations are wrong: after (118) the factor is γ0²β²/λ, not half of it, and the
    hidden layers of (117), (120) and (121) lack 1/λ, which matters unless λ = 1.
    """
    gamma = checks.nonnegative("richness", richness, positive=True)
    beta = checks.nonnegative("inverse_temperature", inverse_temperature, positive=True)
    ridge = checks.nonnegative("ridge", ridge, positive=True)
    return BayesParameters(1 / ridge, 1 / ridge, 1 / (ridge * gamma**2), 1 / (gamma**2 * beta))
