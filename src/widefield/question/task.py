"""The task: inputs, labels, and the states at which the network is driven and read out."""

import html
from dataclasses import dataclass, field

import numpy as np

from widefield.question import checks

_INPUTS = "a (sample, D) array or a (sample, state, D) array of sequences"
_LABELS = "(sample,), (sample, output) or (sample, supervised state, output)"


@dataclass(frozen=True, eq=False)
class Task:
    """Inputs ``x`` and optional labels ``y``, with optional test inputs and labels.

    ``x[:, s]`` drives state ``s``; a 2-D ``x`` drives state 0 only. ``supervised`` are the states whose readouts have
    labels, negative indices counting from the end. 1-D and 2-D ``y`` belong to one supervised state (by default the
    last), 3-D ``y`` has one entry per supervised state in that order (by default all states).
    """

    x: np.ndarray
    y: np.ndarray | None = None
    supervised: tuple[int, ...] | None = None
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        notes: list[str] = []
        self._store("x", checks.real_array("x", self.x, (2, 3), _INPUTS), notes)
        for name, ndim, meaning in (
            ("y", (1, 2, 3), _LABELS),
            ("x_test", (2, 3), _INPUTS),
            ("y_test", (1, 2, 3), _LABELS),
        ):
            value = getattr(self, name)
            if value is not None:
                self._store(name, checks.real_array(name, value, ndim, meaning), notes)
        object.__setattr__(self, "supervised", checks.states(self.supervised))
        object.__setattr__(self, "notes", tuple(notes))
        self._check_labels()
        self._check_test()

    def _store(self, name: str, checked: tuple[np.ndarray, str | None], notes: list[str]) -> None:
        array, note = checked
        object.__setattr__(self, name, array)
        if note:
            notes.append(note)

    def _check_labels(self) -> None:
        if self.y is None:
            return
        if len(self.y) != len(self.x):
            raise ValueError(f"`y` must have one row per sample of `x` ({len(self.x)}), got {len(self.y)}.")
        if self.y.ndim < 3 and self.supervised is not None and len(self.supervised) != 1:
            raise ValueError(
                f"`y` of shape {self.y.shape} belongs to one supervised state, but `supervised` names "
                f"{len(self.supervised)}; give `y` as (sample, supervised state, output)."
            )
        if self.y.ndim == 3 and self.supervised is not None and self.y.shape[1] != len(self.supervised):
            raise ValueError(
                f"`y` has {self.y.shape[1]} supervised states, but `supervised` names {len(self.supervised)}."
            )

    def _check_test(self) -> None:
        if self.x_test is None:
            if self.y_test is not None:
                raise ValueError("`y_test` needs `x_test`.")
            return
        if self.x_test.shape[1:] != self.x.shape[1:]:
            raise ValueError(
                f"`x_test` must have the shape of `x` after the sample axis {self.x.shape[1:]}, "
                f"got {self.x_test.shape[1:]}."
            )
        if self.y_test is not None and len(self.y_test) != len(self.x_test):
            raise ValueError(f"`y_test` must have {len(self.x_test)} rows, one per test input, got {len(self.y_test)}.")
        if self.y_test is not None and self.y is not None and self.y_test.shape[1:] != self.y.shape[1:]:
            raise ValueError(f"`y_test` must have the shape of `y` after the sample axis, got {self.y_test.shape}.")

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
        if self.supervised is None:
            states: tuple[int, ...] = tuple(range(depth)) if self.y is not None and self.y.ndim == 3 else (depth - 1,)
            if self.y is not None and self.y.ndim == 3 and self.y.shape[1] != depth:
                raise ValueError(
                    f"`y` has {self.y.shape[1]} supervised states, but the network has {depth}; "
                    "say which with `supervised`."
                )
            return states
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
        return _label_axes(self.y)

    def __str__(self) -> str:
        n_driven = 1 if self.x.ndim == 2 else self.x.shape[1]
        where = "driving state 0" if self.x.ndim == 2 else f"driving states 0 … {n_driven - 1}"
        lines = [f"Task: {self.n_samples} samples in {self.dimension} dimensions, {where}"]
        if self.y is not None:
            states = "the default states" if self.supervised is None else f"states {list(self.supervised)}"
            lines.append(f"  labels     {_label_axes(self.y).shape[2]} output(s) at {states}")
        if self.x_test is not None:
            lines.append(f"  test       {self.n_test} samples{' with labels' if self.y_test is not None else ''}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _label_axes(y: np.ndarray) -> np.ndarray:
    if y.ndim == 3:
        return y
    return y.reshape(len(y), 1, -1)
