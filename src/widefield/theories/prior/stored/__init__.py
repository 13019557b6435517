"""Kernels that are larger than the memory, or than the machine: made and solved in tiles that lie on a disk."""

from widefield.theories.prior.stored.solve import stored_prior

__all__ = ["stored_prior"]
