"""Gradient descent of one finite network, written out literally: every derivative is a complex step.

Im F(θ + iε)/ε is the derivative of an analytic F to rounding, with one evaluation of the network per parameter. Shares
with the simulator only the order in which random numbers are drawn.
"""

import numpy as np
from scipy.special import erf

from widefield.simulate.networks.streams import HIDDEN, READOUT, streams

TINY = 1e-30
ACTIVATIONS = {
    "linear": lambda z: z,
    "relu": lambda z: np.where(z.real > 0, z, 0),
    "tanh": np.tanh,
    "erf": erf,
    "sin": np.sin,
    "softplus": lambda z: np.log(1 + np.exp(z)),
    "gelu": lambda z: z / 2 * (1 + erf(z / np.sqrt(2))),
}


def draw(net, task, width, n_outputs, seed, replicate, scale=1.0):
    """Initial parameters: one entry per state or transition where untied, else one."""
    sizes, x = net.sizes(width), task.sequences(net.depth)
    rng, last = (streams(seed, [replicate], purpose)[0] for purpose in (HIDDEN, READOUT))
    count = lambda sharing, n: min(n, 1) if sharing == "tied" else n  # noqa: E731
    n_biases = count(net.biases, net.depth) if net.bias_variances.any() else 0
    U = [scale * rng.standard_normal((x.shape[2], sizes[k])) for k in range(count(net.inputs, x.shape[1]))]
    W = [scale * rng.standard_normal((sizes[k], sizes[k + 1])) for k in range(count(net.weights, net.depth - 1))]
    b = [scale * rng.standard_normal((1, sizes[k])) for k in range(n_biases)]
    V = [scale * last.standard_normal((sizes[-1], n_outputs))]
    return {"W": W, "U": U, "b": b, "V": V}


def states(net, theta, x, bumps):
    """Pre-activations of every state for x (sample, driven state, D); ``bumps`` are added to them."""
    pick = lambda group, k: group[k] if len(group) > 1 else group[0]  # noqa: E731
    phi, hidden = ACTIVATIONS[net.activation.name], []
    for k in range(net.depth):
        h = bumps[k]
        if k > 0:
            W = pick(theta["W"], k - 1)
            h = h + np.sqrt(net.weight_variances[k - 1] / len(W)) * phi(hidden[-1]) @ W
        if k < x.shape[1]:
            h = h + np.sqrt(net.input_variances[k] / x.shape[2]) * x[:, k] @ pick(theta["U"], k)
        if theta["b"]:
            h = h + np.sqrt(net.bias_variances[k]) * pick(theta["b"], k)
        hidden.append(h)
    return hidden


class Literal:
    """One network with its task; ``loss`` is a function of all supervised outputs and labels."""

    def __init__(self, net, task, theta, richness, loss, center):
        self.net, self.theta, self.richness, self.loss = net, theta, richness, loss
        self.x, self.P = task.sequences(net.depth, test=True), task.n_samples
        after = lambda k: theta["W"][k if len(theta["W"]) > 1 else 0]  # noqa: E731
        self.sizes = sizes = [theta["U"][0].shape[1], *(after(k).shape[1] for k in range(net.depth - 1))]
        self.supervised = task.supervised_states(net.depth)
        self.read = list(range(net.depth)) if len(set(sizes)) == 1 else list(self.supervised)
        self.where = [self.read.index(c) for c in self.supervised]
        self.y = task.labels().swapaxes(0, 1)
        self.N = len(theta["V"][0])
        self.bumps = [np.zeros((len(self.x), n)) for n in self.sizes]
        self.origin = 0.0
        self.origin = self.outputs().real if center else 0.0

    def outputs(self):
        """f (read state, sample, output), test samples last."""
        h, V = states(self.net, self.theta, self.x, self.bumps), self.theta["V"][0]
        phi = ACTIVATIONS[self.net.activation.name]
        scale = np.sqrt(self.net.readout_variance) / (self.richness * self.N)
        return np.stack([scale * phi(h[k]) @ V for k in self.read]) - self.origin

    def objective(self, f):
        return self.loss(f[self.where, : self.P], self.y)

    def derivatives(self, group, i):
        """Of supervised outputs (…, readout, sample, output) and of the objective in every entry of one array."""
        array = group[i]
        by_f = np.empty((*array.shape, len(self.where), self.P, self.y.shape[-1]))
        by_loss = np.empty(array.shape)
        for index in np.ndindex(array.shape):
            group[i] = array.astype(complex)
            group[i][index] += 1j * TINY
            f = self.outputs()
            by_f[index], by_loss[index] = f[self.where, : self.P].imag / TINY, self.objective(f).imag / TINY
        group[i] = array
        return by_f, by_loss

    def row(self):
        """All fields of one step, and the gradient of the objective."""
        f, gradient, ntk = self.outputs(), {}, 0.0
        for name, group in self.theta.items():
            for i in range(len(group)):
                by_f, gradient[name, i] = self.derivatives(group, i)
                ntk = ntk + np.einsum("ijcmo,ijdnp->cdmnop", by_f, by_f)
        g = []
        for k, n in enumerate(self.sizes):
            by_f, _ = self.derivatives(self.bumps, k)
            g.append(self.richness * np.sqrt(n * self.N) * np.einsum("micmo->cmoi", by_f[: self.P]))
        h = [a[: self.P] for a in states(self.net, self.theta, self.x, self.bumps)]
        phi = [ACTIVATIONS[self.net.activation.name](a) for a in h]
        fields = {"loss": self.objective(f), "f": f[:, : self.P], "f_test": f[:, self.P :], "h": h, "phi": phi, "g": g}
        return fields | {"ntk": self.richness**2 * self.N * ntk}, gradient


def squared(f, y):
    return 0.5 * ((f - y) ** 2).sum()


def logistic(f, y):
    return np.log(1 + np.exp(-y * f)).sum()


def cross_entropy(f, y):
    return -(y * (f - np.log(np.exp(f).sum(axis=-1, keepdims=True)))).sum()


def train(net, task, theta, *, richness, rates, loss=squared, decay=0.0, tau=None, temperature=0.0, center=False,
          noise=None):  # fmt: skip
    """Rows of loss, predictions, tangent kernel, features, backward fields and pre-activations, one per step."""
    theta = {name: [a.copy() for a in group] for name, group in theta.items()}
    network = Literal(net, task, theta, richness, loss, center)
    velocity = {(name, i): 0.0 * a for name, group in theta.items() for i, a in enumerate(group)}
    rows = []
    for eta in rates:
        row, gradient = network.row()
        rows.append(row)
        for (name, i), slope in gradient.items():
            drift = -(richness**2) * network.N * slope
            if tau is not None:
                drift = velocity[name, i] = (1 - eta / tau) * velocity[name, i] + eta / tau * drift
            theta[name][i] = (1 - eta * decay) * theta[name][i] + eta * drift
            if temperature:
                theta[name][i] += np.sqrt(2 * eta * temperature) * noise.standard_normal(slope.shape)
    return [*rows, network.row()[0]]
