"""Where training with weight decay ends: the representer theorem of the final tangent kernel."""

import numpy as np

from widefield.question import checks


def regularised_prediction(
    kernel: np.ndarray, y: np.ndarray, *, weight_decay: float, degree: int, test_kernel: np.ndarray | None = None
) -> np.ndarray:
    r"""Outputs at the fixed point of descent with weight decay, from the tangent kernel there.

    .. math:: f(x) = k(x)^T(K + \lambda\kappa)^{-1}y

    Eq. 98 of Bordelon & Pehlevan (2022). Notation: :math:`K` is ``kernel`` (sample, sample), :math:`k` ``test_kernel``
    (test, sample), the training samples themselves where it is not given; :math:`\lambda` ``weight_decay``; the network is
    homogeneous of ``degree`` :math:`\kappa` in its weights, depth + 1 for linear and relu networks without biases that are
    driven at the first state.

    Error: none at a fixed point of linear networks, whatever the rate. Limits: the squared loss; relu neurons come to
    rest at :math:`h = 0`, where the slope is undefined and only :math:`f = v\Phi\Delta/\lambda` holds.
    """
    K, _ = checks.real_array("kernel", kernel, (2,), "a (sample, sample) array")
    labels, _ = checks.real_array("y", y, (1, 2), "(sample,) or (sample, output)")
    if K.shape != (len(labels), len(labels)):
        raise ValueError(f"`kernel` must have one row and column per label ({len(labels)}), got shape {K.shape}.")
    size = checks.nonnegative("weight_decay", weight_decay) * checks.integer("degree", degree, 1)
    between = K
    if test_kernel is not None:
        between, _ = checks.real_array("test_kernel", test_kernel, (2,), "a (test, sample) array")
        if between.shape[1] != len(labels):
            raise ValueError(
                f"`test_kernel` must have {len(labels)} columns, one per label, got shape {between.shape}."
            )
    try:
        return between @ np.linalg.solve(K + size * np.eye(len(K)), labels)
    except np.linalg.LinAlgError:
        raise ValueError("`kernel` must be invertible where `weight_decay` is zero.") from None
