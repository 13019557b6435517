"""Finite networks: the same quantities as the theories, measured in real networks. Shares no code with them."""

from widefield.simulate.dynamics import dynamics
from widefield.simulate.extrapolate import extrapolate
from widefield.simulate.finite_width import finite_width
from widefield.simulate.posterior import posterior
from widefield.simulate.prior import prior
from widefield.simulate.proportional import proportional

__all__ = ["dynamics", "extrapolate", "finite_width", "posterior", "prior", "proportional"]
