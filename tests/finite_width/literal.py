"""The printed recursions, with inverse metrics and sums over a grid: slow, and shares no code with the library."""

import itertools

import numpy as np


def grid(K, spacing):
    """Nodes (node, sample) and weights of a Gaussian of covariance K: equal steps, exponentially accurate."""
    z = np.arange(-8.4, 8.4 + spacing / 2, spacing)
    w = np.exp(-0.5 * z**2)
    w = w / w.sum()
    n = len(K)
    nodes = np.stack(np.meshgrid(*[z] * n, indexing="ij"), axis=-1).reshape(-1, n)
    weights = np.prod(np.stack(np.meshgrid(*[w] * n, indexing="ij"), axis=-1).reshape(-1, n), axis=-1)
    keep = weights > 1e-18
    return nodes[keep] @ np.linalg.cholesky(K).T, weights[keep]


def literal(function, K, weights, biases, widths, spacing=0.2):
    """K, V, G1 of all layers by Eqs. 4.118, 4.119 (indices raised, as in 4.90) and 4.115; ``widths`` feed layers 2, 3, …"""
    n = len(K)
    V, G = np.zeros((n,) * 4), np.zeros((n, n))
    layers = [(K, V, G)]
    for step, (w, b) in enumerate(zip(weights, biases, strict=True)):
        ratio = widths[step] / widths[step - 1] if step else 0.0
        z, p = grid(K, spacing)
        s = function(z)
        inverse = np.linalg.inv(K)
        two = np.einsum("x,xa,xb->ab", p, s, s)
        four = np.einsum("x,xa,xb,xc,xd->abcd", p, s, s, s, s, optimize=True)
        centered = np.einsum("xa,xb->xab", z, z) - K
        first = np.einsum("x,xa,xb,xcd->abcd", p, s, s, centered, optimize=True)
        second = np.einsum("x,xa,xb,xcd,xef->abcdef", p, s, s, centered, centered, optimize=True)
        raised = np.einsum("ai,bj,ck,dl,ijkl->abcd", inverse, inverse, inverse, inverse, V, optimize=True)
        V_next = w**2 * (four - np.einsum("ab,cd->abcd", two, two))
        V_next = V_next + w**2 * ratio / 4 * np.einsum("efgh,abef,cdgh->abcd", raised, first, first, optimize=True)
        G_next = 0.5 * np.einsum("ec,fd,cd,abef->ab", inverse, inverse, G, first, optimize=True)
        G_next += np.einsum("cdef,abcdef->ab", raised, second) / 8
        moment = -2 * (first + np.einsum("ab,cd->abcd", two, K)) + np.einsum("ab,cd->abcd", two, K)
        G_next += np.einsum("cedf,ef,abcd->ab", raised, K, moment, optimize=True) / 4
        K, V, G = b + w * two, V_next, w * ratio * G_next
        layers.append((K, V, G))
    return [np.stack(part) for part in zip(*layers, strict=True)]


def linear_covariance(K, widths):
    """Exact Cov(Ĝ12, Ĝ34) of a linear network without biases at any widths."""
    n = len(K)
    out = np.zeros((n,) * 4)
    for a, b, c, d in itertools.product(range(n), repeat=4):
        flat = K[a, b] * K[c, d]
        total = flat + K[a, c] * K[b, d] + K[a, d] * K[b, c]
        up, down = np.prod([1 + 2 / m for m in widths]), np.prod([1 - 1 / m for m in widths])
        out[a, b, c, d] = total / 3 * up + (flat - total / 3) * down - flat
    return out
