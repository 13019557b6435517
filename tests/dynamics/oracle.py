"""Linear networks by explicit responses: A, B, Φ and G as whole (state, step, sample) matrices. Shares nothing with the library.

Eqs. (dynamics.3) to (dynamics.8) with g = z, written as one dense linear system

    h = d u + γ0 C g,    g = d r + E v0 + γ0 D h,    A = ∂h/∂r/γ0,    B = ∂g/∂u/γ0

and closed by causality: rows up to step t are swept until they hold, then one more step is added.
Widths: g = γ0 N_L ∂f/∂h, so that r and B carry N_{k+1}/N_k.
Langevin noise adds weights of covariance ε(t,s): Gaussians u', r', v' of its own and responses ε ∂h/∂r', ε ∂g/∂u'.
"""

import numpy as np


class Question:
    """Numbers of a network and a task: masks, input kernel and labels, read off the user's objects."""

    def __init__(self, network, task):
        K, self.network = network.depth, network
        x = task.sequences(K, test=True)
        self.K, self.n_train, self.P = K, task.n_samples, len(x)
        shared = lambda sharing: np.ones((K, K)) if sharing == "tied" else np.eye(K)  # noqa: E731
        root_w = np.sqrt(np.concatenate([[0.0], network.weight_variances]))
        self.mask = shared(network.weights) * np.outer(root_w, root_w)
        full = np.zeros((K, self.P, x.shape[2]))
        full[: x.shape[1]] = np.sqrt(network.input_variances[: x.shape[1], None, None]) * x.swapaxes(0, 1)
        root_b = np.sqrt(network.bias_variances)
        self.X = shared(network.inputs)[:, None, :, None] * np.einsum("kmd,lnd->kmln", full, full) / x.shape[2]
        self.X = self.X + (shared(network.biases) * np.outer(root_b, root_b))[:, None, :, None]
        self.v = network.readout_variance
        self.widths = network.relative_widths
        states = task.supervised_states(K)
        order = np.argsort(states)
        self.states = [states[i] for i in order]
        self.labels = task.labels()[:, order]  # (sample, readout, output)
        self.n_out = self.labels.shape[2]
        self.channels = [(c, o) for c in self.states for o in range(self.n_out)]


class Scales:
    """Of the initial weights: into every state, those that z of a channel reads, inputs and readout."""

    def __init__(self, q, scale):
        n = 1 if q.network.weights == "tied" else q.K - 1
        first, *inner, last = np.broadcast_to(scale, (n + 2,))
        self.first, self.last = first, last
        self.into = np.array([first, *np.broadcast_to(inner, (q.K - 1,))])
        above = np.append(self.into[1:], last)
        self.out = np.array([[last if k == c else above[k] for k in range(q.K)] for c, _ in q.channels])


def memory_kernel(rates, decay=0.0, tau=None):
    """What is left at step t of the update made at s: κ (t, s); and of the initial weights: d (t)."""
    T = len(rates)
    weight, speed, kernel, kept = np.zeros(T), np.zeros(T), np.zeros((T, T)), np.ones(T)
    left = 1.0
    for t in range(T):
        kernel[t], kept[t] = weight, left
        pull = np.eye(T)[t]
        speed = pull if tau is None else (1 - rates[t] / tau) * speed + rates[t] / tau * pull
        weight = (1 - rates[t] * decay) * weight + rates[t] * speed
        left *= 1 - rates[t] * decay
    return kernel, kept


def shaken(rates, decay, temperature):
    """Covariance (t, s) of what noise √(2ηT) at every earlier step has left in a weight."""
    keep, T = 1 - rates * decay, len(rates)
    left = np.array([[np.prod(keep[i + 1 : t]) * (i < t) for i in range(T)] for t in range(T)])
    return left @ np.diag(2 * rates * temperature) @ left.T


def solve(network, task, *, richness, rate, steps, decay=0.0, tau=None, scale=1.0, temperature=0.0, mistake=None):
    """Kernels and predictions of a linear network after ``steps`` updates.

    ``f`` (step, state, sample, output), ``phi`` (state, step, sample)², ``g`` (channel, state, step, sample)², ``ntk``
    (step, channel, channel, sample, sample), ``A``, ``B``. ``mistake``: ``"A"``, ``"B"`` drop a response.
    """
    q = Question(network, task)
    scale = Scales(q, scale)
    T = steps + 1
    rates = np.append(np.broadcast_to(rate, (steps,)), 0.0)
    kernel, kept = memory_kernel(rates, decay, tau)
    noise = shaken(rates, decay, temperature)
    n_c = len(q.channels)
    phi, G = np.zeros((q.K, T, q.P) * 2), np.zeros((n_c, q.K, T, q.P) * 2)
    A, B = np.zeros((q.K, T, q.P, n_c, q.K, T, q.P)), np.zeros((n_c, q.K, T, q.P, q.K, T, q.P))
    delta = np.zeros((n_c, T, q.P))
    f = np.zeros((T, q.K, q.P, q.n_out))
    for t in range(T):
        n = t + 1
        for _ in range(2 * q.K + 2):
            cut = phi[:, :n, :, :, :n], G[:, :, :n, :, :, :, :n], A[:, :n, :, :, :, :n], B[:, :, :n, :, :, :n]
            new = _sweep(q, richness, kernel[:n, :n], kept[:n], noise[:n, :n], scale, *cut, delta[:, :n], mistake)
            phi[:, :n, :, :, :n], G[:, :, :n, :, :, :, :n], A[:, :n, :, :, :, :n], B[:, :, :n, :, :, :n], f[:n] = new
            for i, (c, o) in enumerate(q.channels):
                delta[i, :n, : q.n_train] = q.labels[:, q.states.index(c), o] - f[:n, c, : q.n_train, o]
    return {"f": f, "phi": phi, "g": G, "A": A, "B": B, "ntk": _ntk(q, phi, G), "channels": q.channels}


def _sweep(q, gamma, kernel, kept, noise, scale, phi, G, A, B, delta, mistake):
    """All matrices once, from the ones of the last sweep."""
    K, T, P = phi.shape[:3]
    n_c = len(q.channels)
    below = np.zeros_like(phi)
    below[1:, :, :, 1:] = phi[:-1, :, :, :-1]
    below = below * q.mask[:, None, None, :, None, None]
    inputs = q.X[:, None, :, :, None, :]
    learnt = np.einsum("ktmlsn,ts,csn->ktmclsn", below + inputs, kernel, delta)
    C = np.zeros((K, T, P, n_c, K, T, P))
    if mistake != "A":
        C[1:, :, :, :, 1:] = A[:-1, :, :, :, :-1] * q.mask[1:, 1:][:, None, None, None, :, None, None]
    # A holds one factor of the scale, W0 brings one
    carried = scale.into[:, None, None] * kept[:, None] + noise / (scale.into[:, None, None] * kept)  # (state, t, s)
    C = C * carried[:, :, None, None, None, :, None] + learnt
    ratio = np.append(q.widths[1:] / q.widths[:-1], 0.0)  # of the width above to this one
    up = np.zeros((K, K))
    up[:-1, :-1] = q.mask[1:, 1:]
    up = up * ratio[:, None]
    above = np.zeros_like(G)
    above[:, :-1, :, :, :, :-1] = G[:, 1:, :, :, :, 1:]
    above = above * up[:, None, None, None, :, None, None]
    D = np.zeros((n_c, K, T, P, K, T, P))
    if mistake != "B":
        D[:, :-1, :, :, :-1] = B[:, 1:, :, :, 1:] * up[:-1, :-1][:, None, None, :, None, None]
    D = D * np.append(carried[1:], carried[:1], axis=0)[:, :, None, None, :, None]
    D = D + np.einsum("cktmdlsn,ts,dsn->cktmlsn", above, kernel, delta)
    E = np.zeros((n_c, K, T, P, q.n_out))
    for i, (c, o) in enumerate(q.channels):
        E[i, c, :, :, o] = np.sqrt(q.v) * scale.last * kept[:, None]
        for j, (k, p) in enumerate(q.channels):
            if o == p:
                D[i, c, :, :, k] += q.v * (kernel[:, :][:, None, :, None] * delta[j][None, None])  # v moves with Δφ
    inputs = inputs * (scale.first**2 / np.outer(scale.into, scale.into))[:, None, None, :, None, None]
    shaken_u = (below + q.X[:, None, :, :, None, :]) * noise[:, None, None, :, None]
    shaken_r = above * noise[:, None, None, None, :, None]
    for i, (c, o) in enumerate(q.channels):
        for j, (k, p) in enumerate(q.channels):
            if o == p:
                shaken_r[i, c, :, :, j, k] += q.v * noise[:, None, :, None]
    gaussians = below + inputs, above, shaken_u, shaken_r
    return _solve_site(q, gamma, scale, kept, noise, *gaussians, C, D, E, kernel, delta, (K, T, P, n_c))


def _solve_site(q, gamma, scale, kept, noise, cov_u, cov_r, shaken_u, shaken_r, C, D, E, kernel, delta, shape):
    """The linear site: h, g as combinations of the Gaussians u, r and v0, and of u' and r' (with v'), as their covariances."""
    K, T, P, n_c = shape
    n_h, n_g = K * T * P, n_c * K * T * P
    C, D, E = C.reshape(n_h, n_g), D.reshape(n_g, n_h), E.reshape(n_g, -1)
    cov_u, cov_r, shaken_u, shaken_r = (
        v.reshape(n, n) for v, n in zip((cov_u, cov_r, shaken_u, shaken_r), (n_h, n_g) * 2, strict=True)
    )
    d_h = np.outer(scale.into, np.repeat(kept, P)).ravel()
    d_g = np.outer(scale.out, np.repeat(kept, P)).ravel()
    Z = np.linalg.inv(np.eye(n_h) - gamma**2 * C @ D)
    by_u, by_r, by_v = Z * d_h, gamma * Z @ C * d_g, gamma * Z @ C @ E
    full_r = gamma * Z @ C
    phi = by_u @ cov_u @ by_u.T + by_r @ cov_r @ by_r.T + by_v @ by_v.T
    phi += Z @ shaken_u @ Z.T + full_r @ shaken_r @ full_r.T
    g_u, g_r, g_v = gamma * D @ by_u, np.diag(d_g) + gamma * D @ by_r, E + gamma * D @ by_v
    G = g_u @ cov_u @ g_u.T + g_r @ cov_r @ g_r.T + g_v @ g_v.T
    by_shaken_r = np.eye(n_g) + gamma * D @ full_r
    G += (gamma * D @ Z) @ shaken_u @ (gamma * D @ Z).T + by_shaken_r @ shaken_r @ by_shaken_r.T
    A, B = (by_r / gamma).reshape(K, T, P, n_c, K, T, P), (g_u / gamma).reshape(n_c, K, T, P, K, T, P)
    phi, by_v = phi.reshape(K, T, P, K, T, P), by_v.reshape(K, T, P, -1)
    f = np.sqrt(q.v) * scale.last * kept[:, None, None, None] * by_v.transpose(1, 0, 2, 3) / gamma
    full_r = full_r.reshape(K, T, P, n_c, K, T, P)
    for j, (k, o) in enumerate(q.channels):
        f[..., o] += q.v * np.einsum("ltmsn,ts,sn->tlm", phi[:, :, :, k], kernel, delta[j])
        f[..., o] += q.v * np.einsum("ltmsn,ts->tlm", full_r[:, :, :, j, k], noise) / gamma
    return phi, G.reshape(n_c, K, T, P, n_c, K, T, P), A, B, f


def _ntk(q, phi, G):
    """γ0² N Σ_θ ∂f ∂f': layers count by their widths."""
    K, T, P = phi.shape[:3]
    total = np.zeros((T, len(q.channels), len(q.channels), P, P))
    share = q.widths / q.widths[-1]
    for t in range(T):
        for i, (c, o) in enumerate(q.channels):
            for j, (d, p) in enumerate(q.channels):
                total[t, i, j] = (o == p) * q.v * phi[c, t, :, d, t]
                for k in range(K):
                    for l in range(K):
                        base = q.X[k, :, l] + (q.mask[k, l] * phi[k - 1, t, :, l - 1, t] if k and l else 0.0)
                        total[t, i, j] += share[k] * G[i, k, t, :, j, l, t] * base
    return total
