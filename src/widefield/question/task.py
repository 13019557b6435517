"""The task: inputs, labels, and the states at which the network is driven and read out."""

from dataclasses import dataclass, field

import numpy as np

from widefield.question import checks

_INPUTS = "a (sample, D) array or a (sample, state, D) array of sequences"
CLASSES = "y: integers are regressed as numbers; classes are one column each, such as np.eye(n_classes)[y]"
_LABELS = "(sample,), (sample, output) or (sample, supervised state, output)"


@dataclass(frozen=True, eq=False, repr=False)
class Task(checks.Noun):
    """Inputs ``x`` and optional labels ``y``, with optional test inputs and labels.

    ``x[:, s]`` drives state ``s``; a 2-D ``x`` drives state 0 only. ``supervised`` are the states whose readouts have
    labels, negative indices counting from the end. 1-D and 2-D ``y`` belong to one supervised state (by default the
    last), 3-D ``y`` has one entry per supervised state in that order (by default all states). Labels are numbers: the
    integers 0, 1, 2 are regressed as such, which a note says; classes are one column each.
    """

    x: np.ndarray
    y: np.ndarray | None = None
    supervised: tuple[int, ...] | None = None
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    notes: tuple[str, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        notes: list[str] = []
        for name, ndim, meaning in (
            ("x", (2, 3), _INPUTS),
            ("y", (1, 2, 3), _LABELS),
            ("x_test", (2, 3), _INPUTS),
            ("y_test", (1, 2, 3), _LABELS),
        ):
            given = getattr(self, name)
            if given is None and name != "x":
                continue
            array, note = checks.real_array(name, given, ndim, meaning)
            self._put(**{name: array})
            notes += [note] if note else []
            single = array.ndim == 1 or array.shape[-1] == 1
            if name == "y" and single and np.asarray(given).dtype.kind in "iub" and (np.abs(array) != 1).any():
                notes.append(CLASSES)
        self._put(supervised=checks.states(self.supervised), notes=tuple(notes))
        if self.y is not None:
            self._check_labels(self.y)
        if self.x_test is not None:
            self._check_test(self.x_test)
        elif self.y_test is not None:
            raise ValueError("`y_test` needs `x_test`.")

    def _check_labels(self, y: np.ndarray) -> None:
        if len(y) != len(self.x):
            raise ValueError(f"`y` must have one row per sample of `x` ({len(self.x)}), got {len(y)}.")
        n_states = None if self.supervised is None else len(self.supervised)
        if y.ndim < 3 and n_states not in (None, 1):
            raise ValueError(
                f"`y` of shape {y.shape} belongs to one supervised state, but `supervised` names {n_states}; "
                "give `y` as (sample, supervised state, output)."
            )
        if y.ndim == 3 and n_states not in (None, y.shape[1]):
            raise ValueError(f"`y` has {y.shape[1]} supervised states, but `supervised` names {n_states}.")

    def _check_test(self, x: np.ndarray) -> None:
        if x.shape[1:] != self.x.shape[1:]:
            raise ValueError(
                f"`x_test` must have the shape of `x` after the sample axis {self.x.shape[1:]}, got {x.shape[1:]}."
            )
        y = self.y_test
        if y is not None and len(y) != len(x):
            raise ValueError(f"`y_test` must have {len(x)} rows, one per test input in `x_test`, got {len(y)}.")
        if y is not None and self.y is not None and y.shape[1:] != self.y.shape[1:]:
            raise ValueError(f"`y_test` must have the shape of `y` after the sample axis, got {y.shape}.")

    @property
    def n_samples(self) -> int:
        """Number of training inputs."""
        return len(self.x)

    @property
    def n_test(self) -> int:
        """Number of test inputs."""
        return 0 if self.x_test is None else len(self.x_test)

    @property
    def dimension(self) -> int:
        """Input dimension D."""
        return self.x.shape[-1]

    def sequences(self, depth: int, *, test: bool = False) -> np.ndarray:
        """Inputs as (sample, driven state, D); with ``test`` the test inputs follow the training inputs."""
        x = self.x if not (test and self.x_test is not None) else np.concatenate([self.x, self.x_test])
        x = x[:, None, :] if x.ndim == 2 else x
        if x.shape[1] > depth:
            raise ValueError(f"`x` drives {x.shape[1]} states, but the network has depth {depth}.")
        return x

    def supervised_states(self, depth: int) -> tuple[int, ...]:
        """The supervised states as indices 0 … depth − 1."""
        n_labeled = self.y.shape[1] if self.y is not None and self.y.ndim == 3 else None
        if self.supervised is None and n_labeled not in (None, depth):
            raise ValueError(
                f"`y` has {n_labeled} supervised states, but the network has {depth}; say which with `supervised`."
            )
        if self.supervised is None:
            return (depth - 1,) if n_labeled is None else tuple(range(depth))
        for s in self.supervised:
            if not -depth <= s < depth:
                raise ValueError(f"`supervised` must lie in {-depth} … {depth - 1} for depth {depth}, got {s}.")
        states = tuple(s % depth for s in self.supervised)
        if len(set(states)) < len(states):
            raise ValueError(f"`supervised` names a state twice: {self.supervised}.")
        return states

    def labels(self) -> np.ndarray:
        """Labels as (sample, supervised state, output)."""
        if self.y is None:
            raise ValueError("`y` is needed here, but the task has no labels.")
        return self.y if self.y.ndim == 3 else self.y.reshape(len(self.y), 1, -1)

    def __str__(self) -> str:
        where = "driving state 0" if self.x.ndim == 2 else f"driving states 0 … {self.x.shape[1] - 1}"
        lines = [f"Task: {self.n_samples} samples in {self.dimension} dimensions, {where}"]
        if self.y is not None:
            states = "the default states" if self.supervised is None else f"states {list(self.supervised)}"
            lines.append(f"  labels     {self.labels().shape[2]} output(s) at {states}")
        if self.x_test is not None:
            lines.append(f"  test       {self.n_test} samples{' with labels' if self.y_test is not None else ''}")
        return "\n".join(lines)
