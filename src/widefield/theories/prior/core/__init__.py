"""The part of the prior that other theories use: the recursion, whole covariance matrices, and fixed points at depth."""

from widefield.theories.prior.core.blocks import Target
from widefield.theories.prior.core.device import device_matrices
from widefield.theories.prior.core.fixed_point import DepthLimit, find_depth_limit
from widefield.theories.prior.core.matrices import Matrices, fill_matrices, hidden_covariance, resolve_kernel
from widefield.theories.prior.core.recursion import (
    Block,
    Sharing,
    Variances,
    all_states_block,
    equal_overlaps,
    equal_state_block,
    equal_state_pairs,
    keep_duplicates,
    node_variances,
    output_kernel,
    overlaps,
    sharing_of,
    variances_of,
)
from widefield.theories.prior.core.rows import weighted_rows

__all__ = [
    "Block",
    "DepthLimit",
    "Matrices",
    "Sharing",
    "Target",
    "Variances",
    "all_states_block",
    "device_matrices",
    "equal_overlaps",
    "equal_state_block",
    "equal_state_pairs",
    "fill_matrices",
    "find_depth_limit",
    "hidden_covariance",
    "keep_duplicates",
    "node_variances",
    "output_kernel",
    "overlaps",
    "resolve_kernel",
    "sharing_of",
    "variances_of",
    "weighted_rows",
]
