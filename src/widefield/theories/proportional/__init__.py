"""The proportional limit: deep linear networks whose width, data and dimension grow together."""

from widefield.theories.proportional.exponent import loss_exponent
from widefield.theories.proportional.transfer import optimal_rate, rate_sweep, rate_transfer
from widefield.theories.proportional.solve import proportional

__all__ = ["loss_exponent", "optimal_rate", "proportional", "rate_sweep", "rate_transfer"]
