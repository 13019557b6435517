"""The march: rows of all correlations and responses, one training step after the other (pure JAX)."""

from widefield.theories.proportional.march.causal import Parameters, Shape, march

__all__ = ["Parameters", "Shape", "march"]
