"""Whole matrices instead of rows: the page's equations as printed, swept until they hold. Shares nothing with the library.

All layers are one dense linear system z = (h¹ … h^L, g¹ … g^L) = X z + D (u¹ … u^L, r¹ … r^L), with responses between all
pairs of layers, for plain and residual networks alike. Causality makes a sweep of T + a few steps exact.
"""

import numpy as np
import scipy.linalg


def strict(matrix, channels=1):
    """Zero on and above the diagonal of time."""
    step = np.arange(len(matrix)) // channels
    return matrix * (step[:, None] > step[None, :])


def solve(
    *, steps, depth, rate, richness, width=np.inf, data=None, batch=None, noise=0.0, centered=False, branch=None,
    widths=None, overlap=None, mistake=None,
):  # fmt: skip
    """Losses (row, channel) and matrices; ``data`` is α, ``batch`` α_B, ``noise`` σ².

    ``mistake``: ``"strict"`` takes the printed "t' < t" of every response, ``"kernel"`` the printed ηγ0 C_g in v.
    """
    T, Q = steps + 1, np.atleast_2d(1.0 if overlap is None else overlap)
    c, n = len(Q), T * len(Q)
    eta, one, eye = np.repeat(np.broadcast_to(rate, (T,)), c), np.tile(np.eye(c), (T, 1)), np.eye(n)
    later = lambda M: strict(M, c) * eta  # noqa: E731
    causal = (lambda M: strict(M, c)) if mistake == "strict" else (lambda M: M)
    S = eye - centered * one @ np.eye(c, n)
    a = np.ones(depth) if widths is None else np.asarray(widths, dtype=float)
    g0, skip = richness, 1.0 if branch is None else branch
    state = {name: np.zeros((depth, n, n)) for name in ("C_h", "C_g", "R_hr", "R_gu")}
    losses: dict[str, np.ndarray] = {}
    for _ in range(2 * depth * T + 8):
        K = a[0] / a[-1] * (state["R_gu"][0] / g0 + (g0 if mistake == "kernel" else 1) * later(state["C_g"][0]))
        Sigma = a[0] / a[-1] ** 2 / width / g0**2 * S @ state["C_g"][0] @ S.T
        losses, C_h0, R_hr0 = _inputs(K, Sigma, S, one, Q, noise, data, batch, causal)
        A = [causal(R_hr0) / (width * a[-1] * g0) + g0 * later(C_h0)]
        A += [causal(state["R_hr"][l]) + g0 * skip * later(state["C_h"][l]) for l in range(depth - 1)]
        ratio = a[1:] / a[:-1]
        B = [q * (R + g0 * skip * later(C)) for q, R, C in zip(ratio, state["R_gu"][1:], state["C_g"][1:], strict=True)]
        B += [g0 * later(one @ one.T)]
        sources = [
            C_h0,
            *state["C_h"][:-1],
            *(q * C for q, C in zip(ratio, state["C_g"][1:], strict=True)),
            one @ one.T,
        ]
        Z = _dense(A, B, branch)
        covariance = Z @ scipy.linalg.block_diag(*sources) @ Z.T
        for l in range(depth):
            h, g = slice(l * n, (l + 1) * n), slice((depth + l) * n, (depth + l + 1) * n)
            state["C_h"][l], state["C_g"][l] = covariance[h, h], covariance[g, g]
            state["R_hr"][l], state["R_gu"][l] = Z[h, g], Z[g, h]
    return {name: np.diagonal(value).reshape(T, c) for name, value in losses.items()} | state


def _inputs(K, Sigma, S, one, Q, noise, data, batch, causal):
    """Layer 0: losses as two-time matrices, C_h⁰ and R_hr⁰. What holds each other is swept until causality has closed it."""
    n, T = len(K), len(K) // len(Q)
    eye, step = np.eye(n), np.arange(n) // len(Q)
    inverse_alpha = 0.0 if data is None else 1 / data
    R_D, C_u, few, label = eye, np.zeros((n, n)), np.zeros((n, n)), noise * one @ one.T
    for _ in range(T + 1):
        H = np.linalg.inv(eye + K @ R_D)
        R_vu = -H @ K
        R_D = np.linalg.inv(eye - inverse_alpha * R_vu)
    bias, wide = H @ one @ Q @ one.T @ H.T, H @ Sigma @ H.T
    for _ in range(T + 1):
        C_v = bias + wide + few
        C_D = R_D @ (C_v + label) @ R_D.T
        C_u = inverse_alpha * C_D
        if batch is not None:
            C_u = np.where(step[:, None] == step[None, :], C_v + label, 0.0) / batch
        few = R_vu @ C_u @ R_vu.T
    G, U = R_D @ H, eye + R_D @ R_vu
    C_h0 = G @ one @ Q @ one.T @ G.T + G @ Sigma @ G.T + U @ C_u @ U.T
    train = C_D if data is not None else C_v + label
    losses = {"test_loss": C_v + label, "train_loss": train, "bias": bias, "width_variance": wide, "data_variance": few}
    return losses, C_h0, -G @ S


def _dense(A, B, branch):
    """Responses of (h, g) of all layers to (u, r) of all layers."""
    depth, n = len(A), len(A[0])
    X, D = np.zeros((2, 2 * depth * n, 2 * depth * n))
    eye, b = np.eye(n), 1.0 if branch is None else branch

    def put(M, i, j, value):
        M[i * n : (i + 1) * n, j * n : (j + 1) * n] += value

    for l in range(depth):
        h, g = l, depth + l
        inner, last = branch is not None and l > 0, l == depth - 1
        put(X, h, g, (b if inner else 1) * A[l])
        put(D, h, h, (b if inner else 1) * eye)
        put(X, g, h, (1 if last or branch is None else b) * B[l])
        put(D, g, g, (1 if last or branch is None else b) * eye)
        if inner:
            put(X, h, h - 1, eye)
        if branch is not None and not last:
            put(X, g, g + 1, eye)
    return np.linalg.solve(np.eye(len(X)) - X, D)


def marchenko_pastur(*, alpha, rate, kernel, noise, steps, flow=False):
    """Test loss, train loss and bias of linear regression by descent with a kernel that is ``kernel`` times the identity.

    ``flow``: in continuous time, at multiples of ``rate``.
    """
    y = 1 / alpha
    theta = (np.arange(4000) + 0.5) * np.pi / 4000
    value = 1 + y + 2 * np.sqrt(y) * np.cos(theta)
    weight = 2 * np.sin(theta) ** 2 / value / 4000
    weight = weight / weight.sum() * min(1.0, alpha)
    zero = 1 - min(1.0, alpha)
    t = np.arange(steps + 1)[:, None]
    decay = np.exp(-rate * kernel * value * t) if flow else (1 - rate * kernel * value) ** t
    variance = noise / alpha * ((1 - decay) ** 2 / value) @ weight
    test = decay**2 @ weight + zero + variance + noise
    left = (decay**2 * (alpha * value + noise)) @ weight + (alpha - min(1.0, alpha)) * noise
    return test, left / alpha, (decay @ weight + zero) ** 2
