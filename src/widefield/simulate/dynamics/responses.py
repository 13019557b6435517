r"""Responses of finite networks: sources at one state, sample and step, and what later steps remember of them.

.. math::
    A^{k;j,c}_{\mu\alpha}(t,s) = \frac1{\gamma_0N}\sum_i
    \frac{\partial\varphi(h^k_{i\mu}(t))}{\partial r^{j;c}_{i\alpha}(s)}, \qquad
    B^{k,c;j}_{\mu\alpha}(t,s) = \frac1{\gamma_0N}\sum_i\frac{\partial g^{k+1;c}_{i\mu}(t)}{\partial u^{j+1}_{i\alpha}(s)}

A source :math:`r` is added to the backward field :math:`z^{j;c} = W^Tg^{j+1;c}` of one sample at step s, a source :math:`u`
to the pre-activation; both are multiplied by what weight decay and ``initial_scale`` have left of the initial weights.

Method: all neurons get a source of random sign at once and training goes on from there, with either sign; products with
the signs estimate the sum over neurons (cross terms average out like 1/√N). Central differences of 1e-4; activations with
kinks need neurons that cross them: differences of an eighth and a fourth of what the field moves in the next step,
extrapolated. Langevin noise is the same with and without a source.
Limits: one training run per state, sample, readout and step. With kinks the scatter is that of the few neurons that cross.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from widefield.simulate.dynamics.problem import Problem
from widefield.simulate.dynamics.training import Networks
from widefield.simulate.networks.streams import PROBE, normals, streams

SIZE = 1e-4
KICK = 1 / 8  # of what the field moves in a step, where activations have kinks
FORWARD, BACKWARD = "forward_response", "backward_response"


@dataclass(frozen=True)
class Source:
    """A sign per neuron (replicate, neuron), on ``state`` of one ``sample``: of r at a (readout, output), or else of u."""

    state: int
    sample: int
    channel: tuple[int, int] | None
    signs: np.ndarray


@dataclass(frozen=True)
class Probe:
    """Networks at step ``s`` of their training, ``origin`` being what is subtracted from their outputs."""

    problem: Problem
    networks: Networks
    origin: np.ndarray | float
    s: int

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """Columns of all sources at step ``s``; the networks stay as they are."""
        problem, training = self.problem, self.problem.training
        first, *hidden, last = problem.initial_scales
        hidden = hidden * (len(problem.model.sizes) - 1) if len(hidden) == 1 else hidden
        kept = float(np.prod(1 - training.rates[: self.s] * training.weight_decay))
        rngs = streams(self.networks.seed, self.networks.replicates, PROBE + self.s)
        for state, size in enumerate(problem.model.sizes):
            for sample in range(problem.model.n_train):
                for channel in (None, *problem.channels):
                    source = Source(state, sample, channel, np.sign(normals(rngs, size)))  # drawn whatever is asked for
                    name = BACKWARD if channel is None else FORWARD
                    readout = max(problem.supervised) if channel is None else problem.supervised[channel[0]]
                    if name not in arrays or state > readout or (channel is None and not state):
                        continue
                    weights = state if channel is None else -1 if state == readout else state + 1
                    scale = (first, *hidden, last)[weights]  # of those that make the field of the source
                    self._store(arrays[name], kept * scale * self._column(source), source)

    def _column(self, source: Source) -> np.ndarray:
        """Derivatives (replicate, channel or 1, state, at, sample) by one source; zero before step ``s``."""
        if self.problem.model.net.activation.breaks:
            size = KICK * self._moved(source) or SIZE  # where nothing moves
            rows = [2 * a - b for a, b in zip(*(self._differences(source, f * size) for f in (1, 2)), strict=True)]
        else:
            rows = self._differences(source, SIZE)
        before = np.zeros_like(rows[0])
        return np.stack([rows[t - self.s] if t >= self.s else before for t in self.problem.at], axis=3)

    def _differences(self, source: Source, size: float) -> list[np.ndarray]:
        plus, minus = (self._rows(source, sign * size) for sign in (1, -1))
        return [(a - b) / (2 * size * self.problem.model.richness) for a, b in zip(plus, minus, strict=True)]

    def _moved(self, source: Source) -> float:
        """What h of the source's state moves in the next step, or, for a source of r, the size of g; root mean squares."""
        problem, networks, n = self.problem, self.networks.copy(), self.problem.model.n_train
        now = networks.forward()
        if source.channel is not None:
            sent = networks.backward(networks.slopes(now.h), problem.unit_pull(source.channel))[source.state]
            return float(problem.model.richness * problem.model.sizes[-1] * np.sqrt(np.mean(sent**2)))
        problem.descend(networks, self.origin, problem.step(min(self.s, problem.training.steps - 1)))
        change = (networks.forward().h[source.state] - now.h[source.state])[:, :n]
        return float(np.sqrt(np.mean(change**2)))

    def _rows(self, source: Source, size: float) -> Iterator[np.ndarray]:
        """Rows from step ``s`` on: averages over neurons of sign times φ, or times g for a source of u."""
        problem, networks, model = self.problem, self.networks.copy(), self.problem.model
        for t in range(self.s, problem.n_rows):
            first = t == self.s
            now = networks.forward(self._spread(source, size) if first and source.channel is None else None)
            pulls = problem.pulls(networks.outputs(now.phi, problem.read) - self.origin)
            slopes = networks.slopes(now.h)
            yield self._row(source, networks, now.phi, slopes)
            if t < problem.training.steps:
                added = None
                if first and source.channel is not None:
                    c, o = source.channel
                    pull = pulls[problem.supervised[c]][:, :, o, None]
                    added = self._spread(source, size / (model.richness * model.sizes[-1]) * pull)
                networks.update(now.phi, networks.backward(slopes, pulls, added), pulls, problem.step(t))

    def _spread(self, source: Source, size: float | np.ndarray) -> dict[int, np.ndarray]:
        """The source as what is added to a pass: (replicate, sample, neuron) at its state."""
        one = np.eye(self.problem.model.n_train)[source.sample][None, :, None]
        return {source.state: size * one * source.signs[:, None, :]}

    def _row(self, source: Source, networks: Networks, phi, slopes) -> np.ndarray:
        """(replicate, channel or 1, state, sample); states of other widths have no common neurons and give zero."""
        problem, model, fields = self.problem, self.problem.model, [phi]
        if source.channel is None:
            sent = [networks.backward(slopes, problem.unit_pull(channel)) for channel in problem.channels]
            fields = [[model.richness * model.sizes[-1] * e for e in states] for states in sent]
        n, size = model.n_train, source.signs.shape[1]
        one = lambda x: np.einsum("rmi,ri->rm", x[:, :n], source.signs) / size  # noqa: E731
        none = np.zeros((len(source.signs), n))
        rows = [np.stack([one(x) if x.shape[2] == size else none for x in states], axis=1) for states in fields]
        return np.stack(rows, axis=1)

    def _store(self, array: np.ndarray, response: np.ndarray, source: Source) -> None:
        """Put a column into its place of the field, (replicate[, readout], layer or state, state_, at, …[, output])."""
        problem, column = self.problem, int(np.flatnonzero(self.problem.at == self.s)[0])
        view = array if problem.model.n_outputs > 1 else array[..., None]
        view = view if len(problem.supervised) > 1 else view[:, None]
        state, chosen = source.state, problem.channels
        if source.channel is None:  # B of a state is that of u and g one above
            response = np.concatenate([response[:, :, 1:], np.zeros_like(response[:, :, :1])], axis=2)
            state -= 1
        else:
            chosen = [source.channel]
        for i, (c, o) in enumerate(chosen):
            if problem.by_layer:
                view[:, c, state, :, column, :, source.sample, o] = response[:, i, state]
            else:
                view[:, c, :, state, :, column, :, source.sample, o] = response[:, i]
