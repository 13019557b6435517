r"""Where chains start: weights of the prior, or weights whose network has a given kernel."""

from typing import Any

import numpy as np

from widefield.answer.solution import Solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.simulate.networks.forward import Parameters
from widefield.simulate.posterior.law import Law

SHAPE = "(state, state_, sample, sample_)"


def prior_weights(net: Network, law: Law, rng: np.random.Generator) -> Parameters:
    """Standard normal weights; the readout is left to `law.draw_readout`."""
    n, (n_driven, _, coordinates) = law.width, law.inputs.shape
    n_weights = min(net.depth - 1, 1) if net.weights == "tied" else net.depth - 1
    n_inputs = 1 if net.inputs == "tied" else n_driven
    draw = lambda rows: rng.standard_normal((rows, n))  # noqa: E731
    return Parameters([draw(n) for _ in range(n_weights)], [draw(coordinates) for _ in range(n_inputs)], [], [])


def kernel_of(start: Any, net: Network, n_samples: int, width: int) -> np.ndarray | None:
    """The hidden kernel that ``start`` asks for as (label, label), or None for the prior."""
    if isinstance(start, str):
        checks.choice("start", start, ("prior",))
        return None
    hidden = start
    if isinstance(start, Solution):
        if "hidden" not in start.data:
            raise ValueError("`start` must be a Solution with the field `hidden`.")
        hidden = start.data["hidden"]
        hidden = (hidden.mean("replicate") if "replicate" in hidden.dims else hidden).values
    kernel, _ = checks.real_array("start", hidden, (4,), f"'prior', a Solution or a kernel {SHAPE}")
    d = net.depth * n_samples
    if kernel.shape != (net.depth, net.depth, n_samples, n_samples):
        wanted = (net.depth, net.depth, n_samples, n_samples)
        raise ValueError(f"`start` must be a kernel {SHAPE} of shape {wanted}, got {kernel.shape}.")
    if d > width:
        raise ValueError(f"`start` needs a width of at least depth x samples = {d}, got {width}.")
    flat = kernel.swapaxes(1, 2).reshape(d, d)
    values = np.linalg.eigvalsh((flat + flat.T) / 2)
    if not np.allclose(flat, flat.T, rtol=1e-8, atol=1e-10 * abs(flat).max()) or values[0] < -1e-8 * values[-1]:
        raise ValueError("`start` must be a symmetric positive semi-definite kernel.")
    return (flat + flat.T) / 2


def kernel_weights(kernel: np.ndarray, net: Network, law: Law, rng: np.random.Generator) -> tuple[Parameters, float]:
    r"""Weights of a network whose ``hidden`` kernel is ``kernel``, and the relative mismatch that remains.

    .. math::  \Theta = Z + A^+ (h - A Z)

    Notation: :math:`Z` are prior draws of all input and recurrent weights; row :math:`(a, \alpha)` of :math:`A\Theta`
    is :math:`\varphi(h^{a-1}_\alpha) W^a + x^a_\alpha U^a`; tied weights share columns of :math:`A`. *Method*: Gaussian
    neurons, orthogonalized so that their average is the kernel itself, then the prior conditioned on producing them by
    least squares. *Limits*: a kernel that inputs of deficient rank cannot make is met in the least-squares sense.
    """
    depth, n_samples = net.depth, law.inputs.shape[1]
    values, vectors = np.linalg.eigh(kernel)
    neurons = np.linalg.qr(rng.standard_normal((law.width, len(kernel))))[0] * np.sqrt(law.width)
    h = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T @ neurons.T
    prior = prior_weights(net, law, rng)
    stacked = np.concatenate([*prior.input_weights, *prior.weights])
    a = _design(h.reshape(depth, n_samples, -1), prior, law)
    missed = h - a @ stacked
    stacked = stacked + np.linalg.pinv(a, rcond=1e-10) @ missed
    mismatch = np.linalg.norm(h - a @ stacked) / max(np.linalg.norm(h), np.finfo(float).tiny)
    n_inputs, ends = len(prior.input_weights), np.cumsum([len(m) for m in (*prior.input_weights, *prior.weights)])
    parts = np.split(stacked, ends[:-1])
    return Parameters(parts[n_inputs:], parts[:n_inputs], [], []), float(mismatch)


def _design(h: np.ndarray, prior: Parameters, law: Law) -> np.ndarray:
    """The matrix that maps the stacked weights (inputs first) to the pre-activations of all states."""
    depth, n_samples, n = h.shape
    n_driven, _, coordinates = law.inputs.shape
    first = len(prior.input_weights) * coordinates
    a = np.zeros((depth, n_samples, first + len(prior.weights) * n))
    for s in range(depth):
        if s < n_driven:
            use = 0 if len(prior.input_weights) == 1 else s
            a[s, :, use * coordinates : (use + 1) * coordinates] = law.scales.inputs[s] * law.inputs[s]
        if s > 0:
            use = first + (0 if len(prior.weights) == 1 else s - 1) * n
            a[s, :, use : use + n] = law.scales.weights[s - 1] * np.asarray(law.activation(h[s - 1]))
    return a.reshape(depth * n_samples, -1)
