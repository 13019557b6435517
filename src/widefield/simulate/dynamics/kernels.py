r"""Kernels of networks under training: averages over the neurons of a state, at one step or between steps."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from widefield.simulate.dynamics.training import Arrays, Model

Channels = dict[tuple[int, int], Arrays]  # (readout, output): g/√N of every state, (replicate, sample, neuron)


def tangent_kernel(model: Model, phi: Arrays, fields: Channels, readouts: Sequence[int]) -> np.ndarray:
    r"""The tangent kernel, (replicate, readout, readout\_, sample, sample\_, output, output\_).

    .. math::
        \gamma_0^2 N \sum_\theta \partial_\theta f^c_\mu\, \partial_\theta f^{c'}_\nu = v\,\Phi^{cc'}_{\mu\nu}\,1 +
        \sum_{kk'} G^{kk';cc'}_{\mu\nu} \left(M_{kk'}\sqrt{w_k w_{k'}}\,\Phi^{k-1,k'-1}_{\mu\nu} + \dots\right)

    the dots being inputs and biases with their own masks (1 where tied, :math:`\delta_{kk'}` where not); 1 and G are
    matrices over outputs (Eq. 95 of Bordelon & Pehlevan (2022)).
    """
    v, width, O = model.net.readout_variance or 0.0, model.sizes[-1], model.n_outputs
    same = [[v / width * _gram(phi[c], phi[d])[..., None, None] * np.eye(O) for d in readouts] for c in readouts]
    result = _stacked(same)
    for k, q in product(range(len(model.sizes)), repeat=2):
        covariance = _shared(model, phi, k, q)
        if covariance is not None:
            for (c, o), (d, p) in product(fields, repeat=2):
                result[:, c, d, :, :, o, p] += covariance * _gram(fields[c, o][k], fields[d, p][q])
    return result


def _shared(model: Model, phi: Arrays, k: int, q: int) -> np.ndarray | None:
    """What states k and q share: per sample pair, the product of all that one parameter is multiplied with at both."""
    net, (weights, inputs, biases) = model.net, model.scales
    terms = []
    if k and q and (k == q or net.weights == "tied"):
        terms.append(weights[k - 1] * weights[q - 1] * _gram(phi[k - 1], phi[q - 1]))
    if max(k, q) < len(inputs) and (k == q or net.inputs == "tied"):
        x = model.inputs[:, : model.n_train]
        terms.append(inputs[k] * inputs[q] * (x[k] @ x[q].T))
    if biases[k] * biases[q] and (k == q or net.biases == "tied"):
        terms.append(biases[k] * biases[q] * np.ones((model.n_train, model.n_train)))
    return sum(terms[1:], terms[0]) if terms else None


def _gram(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products over neurons, (replicate, sample, sample)."""
    return a @ b.swapaxes(-1, -2)


def alignment(phi: Arrays, labels: np.ndarray) -> np.ndarray:
    """Cosine (replicate, state) of every state's features with the labels' kernel, summed over readouts."""
    target = np.einsum("cpo,cqo->pq", labels, labels)
    return np.stack([_cosine(_gram(x, x), target) for x in phi], axis=1)


def tangent_alignment(kernel: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The same (replicate,) of the tangent kernel, both as matrices over (readout, sample, output)."""
    flat = kernel.transpose(0, 1, 3, 5, 2, 4, 6).reshape(len(kernel), labels.size, labels.size)
    return _cosine(flat, np.outer(labels, labels))


def _cosine(kernel: np.ndarray, target: np.ndarray) -> np.ndarray:
    size = np.sqrt(np.sum(kernel**2, axis=(1, 2)) * np.sum(target**2))
    return np.sum(kernel * target, axis=(1, 2)) / np.where(size > 0, size, 1.0)


def feature_kernel(model: Model, states: Arrays, *, cross: bool) -> np.ndarray:
    r""":math:`\varphi\varphi/N_k`, (replicate, state[, state\_], at, at\_, sample, sample\_)."""
    scaled = [x / np.sqrt(n) for x, n in zip(states, model.sizes, strict=True)]
    return _two_times(scaled, scaled, cross=cross)


def gradient_kernel(gradients: Channels, *, cross: bool) -> np.ndarray:
    r""":math:`gg/N_k`, (replicate, readout, readout\_, state[, state\_], at, at\_, sample, sample\_, output, output\_)."""
    readouts, outputs = (sorted({channel[i] for channel in gradients}) for i in (0, 1))

    def per_pair(c: int, d: int) -> np.ndarray:
        two_times = lambda o, p: _two_times(gradients[c, o], gradients[d, p], cross=cross)  # noqa: E731
        return np.stack([np.stack([two_times(o, p) for p in outputs], axis=-1) for o in outputs], axis=-2)

    return _stacked([[per_pair(c, d) for d in readouts] for c in readouts])


def _stacked(rows: list[Arrays]) -> np.ndarray:
    """A matrix of arrays as axes 1 and 2."""
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def _two_times(left: Arrays, right: Arrays, *, cross: bool) -> np.ndarray:
    """Inner products of all steps and samples, between all states or (without ``cross``) each with itself."""

    def pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # (replicate, at, at_, sample, sample_)
        n_networks, n_at, n_samples, n = a.shape
        flat = _gram(a.reshape(n_networks, -1, n), b.reshape(n_networks, -1, n))
        return flat.reshape(n_networks, n_at, n_samples, n_at, n_samples).transpose(0, 1, 3, 2, 4)

    if cross:
        return _stacked([[pair(a, b) for b in right] for a in left])
    return np.stack([pair(a, b) for a, b in zip(left, right, strict=True)], axis=1)
