"""Whole matrices instead of rows: the page's equations as printed, swept until they hold. Shares nothing with the library.

All layers are one dense linear system z = (h¹ … h^L, g¹ … g^L) = X z + D (u¹ … u^L, r¹ … r^L), with responses between all
pairs of layers, for plain and residual networks alike. Causality makes a sweep of T + a few steps exact.
"""

import numpy as np


def strict(matrix, channels=1):
    """Zero on and above the diagonal of time."""
    step = np.arange(len(matrix)) // channels
    return matrix * (step[:, None] > step[None, :])


def solve(
    *, steps, depth, rate, richness, width=np.inf, data=None, batch=None, noise=0.0, centered=False, branch=None,
    widths=None, overlap=None, sweeps=None,
):  # fmt: skip
    """Everything after ``sweeps`` sweeps; ``data`` is α, ``batch`` α_B, ``noise`` σ²."""
    T, Q = steps + 1, np.atleast_2d(1.0 if overlap is None else overlap)
    c = len(Q)
    n = T * c
    eta = np.repeat(np.broadcast_to(rate, (T,)), c)
    one, eye = np.tile(np.eye(c), (T, 1)), np.eye(n)
    S = eye - (one @ one[:c].T @ np.eye(c, n) if centered else 0 * eye)
    nu = np.full(depth, width) * (np.ones(depth) if widths is None else np.asarray(widths))
    inverse_nu = 1 / nu[-1]
    inverse_alpha = 0.0 if data is None else 1 / data
    inverse_batch = 0.0 if batch is None else 1 / batch
    g0, b = richness, 1.0 if branch is None else branch
    zero = np.zeros((depth, n, n))
    C_h, C_g, R_hr, R_gu = zero.copy(), zero.copy(), zero.copy(), zero.copy()
    C_h0, R_hr0, C_D = zero[0].copy(), zero[0].copy(), zero[0].copy()
    ratio = [nu[l + 1] / nu[l] if np.isfinite(width) else 1.0 for l in range(depth - 1)]
    first = nu[0] / nu[-1] if np.isfinite(width) else 1.0
    result = {}
    for _ in range(sweeps or 2 * depth * T + 8):
        K = first * (R_gu[0] / g0 + strict(C_g[0], c) * eta)
        R_D = eye.copy()
        for _ in range(T + 1):  # H and R_Δ hold each other
            H = np.linalg.inv(eye + K @ R_D)
            R_vu = -H @ K
            R_D = np.linalg.inv(eye - inverse_alpha * R_vu)
        Sigma = first * inverse_nu / g0**2 * S @ C_g[0] @ S.T
        for _ in range(T + 1):
            C_u = inverse_alpha * C_D
            bias, wide, few = H @ one @ Q @ one.T @ H.T, H @ Sigma @ H.T, R_vu @ C_u @ R_vu.T
            C_v = bias + wide + few
            C_D = R_D @ (C_v + noise * one @ one.T) @ R_D.T
            if data is None:
                step = np.arange(n) // c
                E = (C_v + noise * one @ one.T) * (step[:, None] == step[None, :])
                C_D = E * inverse_batch / max(inverse_alpha, 1e-300) if inverse_alpha else E
                C_u = inverse_batch * E
                few = R_vu @ C_u @ R_vu.T
        if data is None:
            for _ in range(T + 1):
                C_v = bias + wide + few
                E = (C_v + noise * one @ one.T) * (step[:, None] == step[None, :])
                C_u = inverse_batch * E
                few = R_vu @ C_u @ R_vu.T
        else:
            C_u = inverse_alpha * C_D
        G, U = R_D @ H, eye + R_D @ R_vu
        C_h0 = G @ one @ Q @ one.T @ G.T + G @ Sigma @ G.T + U @ C_u @ U.T
        R_hr0 = -G @ S
        A = [inverse_nu / g0 * R_hr0 + g0 * strict(C_h0, c) * eta]
        A += [R_hr[l] + g0 * (1 if branch is None else b) * strict(C_h[l], c) * eta for l in range(depth - 1)]
        B = [ratio[l] * (R_gu[l + 1] + g0 * (1 if branch is None else b) * strict(C_g[l + 1], c) * eta) for l in range(depth - 1)]
        B += [g0 * strict(one @ one.T, c) * eta]
        C_uu = [C_h0, *C_h[:-1]]
        C_rr = [*(r * C for r, C in zip(ratio, C_g[1:], strict=True)), one @ one.T]
        Z = _dense(A, B, branch)
        big = np.zeros((2 * depth * n, 2 * depth * n))
        for i, C in enumerate([*C_uu, *C_rr]):
            big[i * n : (i + 1) * n, i * n : (i + 1) * n] = C
        covariance = Z @ big @ Z.T
        block = lambda M, i, j: M[i * n : (i + 1) * n, j * n : (j + 1) * n]  # noqa: E731
        for l in range(depth):
            C_h[l], C_g[l] = block(covariance, l, l), block(covariance, depth + l, depth + l)
            R_hr[l], R_gu[l] = block(Z, l, depth + l), block(Z, depth + l, l)
        result = {
            "test": np.diagonal(C_v).reshape(T, c) + noise,
            "train": np.diagonal(C_D if data is not None else C_v + noise).reshape(T, c),
            "bias": np.diagonal(bias).reshape(T, c), "width": np.diagonal(wide).reshape(T, c),
            "data": np.diagonal(few).reshape(T, c), "C_h": C_h, "C_g": C_g, "R_hr": R_hr, "R_gu": R_gu,
        }  # fmt: skip
    return result


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
