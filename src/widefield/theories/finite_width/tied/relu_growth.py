r"""Recurrent relu networks: growth rates of single realizations.

Every weight matrix has its own growth rate, :math:`\ln(w/2) \pm \sqrt{5/n}` per state. Means over networks are set by
the rare ones that grow, long before the expansion parameter :math:`5a^2/n` of the variance is large.
Eqs. (finite_width.30), (finite_width.31).
"""

import math

import numpy as np
import scipy.stats

from widefield.question import checks
from widefield.question.network import Network

RARE = 1e-3  # fraction of unstable realizations that the leading order survives
MANY = 10  # states after which growing networks dominate


def unstable_fraction(weight_variance: float, width: int, *, rate_variance: float = 5.0) -> float:
    r"""Fraction of tied relu networks that grow with time, about :math:`\Phi(\ln(w/2)\sqrt{n/5})`, Eq. (finite_width.30).

    ``rate_variance``/n is the variance of the growth rate per state: 5 after many states, less before (4.69 between
    states 20 and 30 at w = 1.73, no bias, where simulations agree within 10 to 20 % of the fraction for n = 250 … 2000).
    """
    w = checks.nonnegative("weight_variance", weight_variance)
    n = checks.integer("width", width, 1)
    spread = math.sqrt(checks.nonnegative("rate_variance", rate_variance, positive=True) / n)
    return float(scipy.stats.norm.cdf(math.log(w / 2) / spread)) if w > 0 else 0.0


def lognormal(kernel, pair_mean, pair_variance, width: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Mean and standard deviation of :math:`\tfrac1n\sum hh` over networks, resummed, Eq. (finite_width.31).

    The median is about C: ln(hh) stays Gaussian where hh does not. Range: tied relu weights without biases and with an
    input at state 0 only, equal states (C > 0).
    """
    C, H1, Vh = (np.asarray(v, float) for v in (kernel, pair_mean, pair_variance))
    n = checks.integer("width", width, 1)
    if np.any(C <= 0):
        raise ValueError("`kernel` must be positive: the logarithm of hh is Gaussian for equal states of relu only.")
    mean = C * np.exp(H1 / (n * C))
    return mean, mean * np.sqrt(np.expm1(Vh / (n * C**2)))


def remarks(network: Network, fraction: float, n_driven: int) -> list[str]:
    """Notes on the fraction of unstable realizations of tied relu networks, which matters after many states."""
    if fraction <= RARE or network.depth <= MANY:
        return []
    share = f"about {100 * fraction:.2g} % of such networks grow without bound, and set the means over networks"
    if n_driven == 1 and not np.any(network.bias_variances):
        return [f"{share}: relu_growth.lognormal resums the mean and spread of hh"]
    return [f"{share}: the leading 1/n shift is too small, and the log-normal form does not hold"]
