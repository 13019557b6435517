"""Finite networks: the same quantities as the theories, measured in real networks. Shares no code with them.

Every call predicts its peak memory and refuses, before it begins, what needs more than 80 % of what is free. Ctrl-C is
answered within a second. Networks share the cores, each with one thread of BLAS, and a seed gives the
same bits on any number of them.
"""

from widefield.simulate.dynamics.simulation import dynamics
from widefield.simulate.finite_width.simulation import finite_width
from widefield.simulate.networks.extrapolate import extrapolate
from widefield.simulate.posterior.simulation import posterior
from widefield.simulate.prior.simulation import prior
from widefield.simulate.proportional.simulation import proportional

__all__ = ["dynamics", "extrapolate", "finite_width", "posterior", "prior", "proportional"]
