"""Random deep and recurrent networks at infinite width."""

from widefield.theories.prior.depth_limit import depth_limit
from widefield.theories.prior.solve import prior

__all__ = ["depth_limit", "prior"]
