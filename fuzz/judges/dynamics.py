"""The dynamics against its lazy limit, a differential equation, changed questions, trained networks, its own errors."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats
from scipy.integrate import solve_ivp

import widefield as wf
from fuzz import questions as ask
from fuzz.questions import Question
from fuzz.verdicts import Defect, answer, close, student

SOME = ("linear", "tanh", "erf", "relu", "sin", "gelu", "np.tanh(z) + 0.3 * z")
CURVED = ("tanh", "erf", "relu", "sin")
BATCHES, SEEDS = 8, 12  # of paths, from which a standard error is made: its z is Student's


def draw(
    rng: np.random.Generator, activations: Any = SOME, depths: Any = (1, 2, 3), protocols: bool = True, **changed: Any
) -> Question:
    words, n = ask.network(rng, depths, activations, 1.5) | {"readout_bias_variance": 0.0}, int(rng.integers(1, 4))
    steps = ask.training(rng, n, words["depth"], protocols) | changed
    x = np.clip(ask.inputs(rng, n, words["depth"], plain=not protocols or ask.chance(rng, 0.7)), -2, 2)
    x_test = (x[:1] / 2).tolist() if ask.chance(rng, 0.3) else None
    q = Question(words, x.tolist(), ask.labels(rng, n), x_test, training=steps)
    q = ask.supervised(rng, q) if protocols and ask.chance(rng, 0.3) else q
    return replace(q, y=np.sign(q.y).tolist()) if steps.get("loss") == "logistic" else q


def draw_noisy(rng: np.random.Generator) -> Question:
    """Long enough for noise, decay and momentum to be seen."""
    q, steps = draw(rng, CURVED, (1, 2), protocols=False), 12
    words = {"rate": ask.spread(rng, 0.15, 0.5) / (len(q.x) * (q.network["depth"] + 1)), "steps": steps}
    words |= {"richness": ask.spread(rng, 0.3, 2.0)}
    some = {"temperature": ask.spread(rng, 0.5, 4.0), "weight_decay": ask.spread(rng, 0.3, 2.0)}
    some |= {"momentum_time": words["rate"] * ask.spread(rng, 2.0, 6.0)}
    kept = [name for name in some if ask.chance(rng, 0.6)] or ["temperature"]
    return replace(q, x_test=None, training=words | {name: some[name] for name in kept})


def solve(q: Question, task: wf.Task | None = None, training: wf.Training | None = None, **options: Any) -> wf.Solution:
    """Sampled paths take what they get: errors are stated, and that is what is judged."""
    if q.network["activation"] != "linear" and "method" not in options:
        options = {"paths": 1024, "rtol": 0.9} | options
    tested = ("test_prediction",) if (task or q.task).x_test is not None else ()
    options = {"quantities": ("prediction", *tested)} | options
    nouns = options.pop("net", q.net), task or q.task, training or q.steps
    return answer(wf.dynamics, *nouns, **options)


def stated(found: wf.Solution, name: str = "prediction") -> tuple[Any, float]:
    """Standard error of a field, and what the certificate states of the rest."""
    values = found.data[name].values
    stderr = found.data[f"{name}_stderr"].values if f"{name}_stderr" in found.data else 0.0
    return stderr, (found.certificate.error or 0.0) * np.sqrt(
        np.mean(values**2, axis=tuple(range(1, values.ndim))).max()
    )


def networks(q: Question) -> None:
    """Every protocol: networks of two widths, 2 · wide − narrow: outputs less the initial ones, entry by entry.

    Their average along the labels, and the mean diagonal of the tangent kernel, are single numbers that scatter less.
    """
    training, kernel = replace(q.steps, centered=True), not (q.supervised or np.ndim(q.y) > 1)
    wanted = ("prediction", "ntk") if kernel else ("prediction",)
    found, many = solve(q, training=training, quantities=wanted), {"replicates": 512, "quantities": wanted}
    nouns = q.net, q.task, training
    wide, narrow = (answer(wf.simulate.dynamics, *nouns, width=n, seed=q.seed + n, **many) for n in (128, 64))
    y = q.task.labels().swapaxes(0, 1)  # supervised state, sample, output
    several = len(y) > 1  # then predictions are those of all states
    read = lambda f: f[..., list(q.supervised or ()), :, :] if several else f  # noqa: E731
    y = y if several else y[0]
    statistics = {
        "prediction": lambda s: s.prediction.values,
        "along the labels": lambda s: (
            np.mean(read(s.prediction.values) * y, axis=tuple(range(-1 - y.ndim, 0))) / np.mean(y**2)
        ),
        "tangent kernel": lambda s: np.mean(
            np.diagonal(s.ntk.values[..., 1:, :, :], axis1=-2, axis2=-1), axis=(-2, -1)
        ),
    }
    stderr, bound = stated(found)
    kernel_error = float(found.ntk_stderr.mean()) if "ntk_stderr" in found.data else 0.0
    errors = {"prediction": (stderr, bound), "along the labels": (0.0, bound / np.sqrt(np.mean(y**2)))}
    errors["tangent kernel"] = (2 * kernel_error, 0.0)
    for name, statistic in statistics.items():
        if kernel or name != "tangent kernel":
            theory, large, small = statistic(found), statistic(wide), statistic(narrow)
            offset = np.abs(large.mean(0) - small.mean(0)).max()
            next_order = offset**2 / (np.abs(theory).max() + 1e-12) + offset / 10
            stderr, bound = errors[name]
            student(name, theory, 2 * large - small, stderr=stderr, bound=bound + next_order)


def lazy(q: Question) -> None:
    """At richness → 0, by either method: f ← f − η NTK (f − y) with the tangent kernel of the prior."""
    task, n = q.task, len(q.x)
    x = task.x if task.x_test is None else np.concatenate([task.x, task.x_test])
    kernel, f = answer(wf.prior, q.net, wf.Task(x), quantities=("ntk",)).ntk.values, [np.zeros(len(x))]
    for rate in q.steps.rates:
        f.append(f[-1] - rate * kernel[:, :n] @ (f[-1][:n] - task.y))
    for method, found in (("lazy", solve(q, method="lazy")), ("full", solve(q))):
        for name, part in {"prediction": slice(0, n), "test_prediction": slice(n, None)}.items():
            if name in found.data:
                stderr, bound = stated(found, name)
                limit = 8 * stderr + bound + 1e-5 * np.abs(f).max()
                close(f"{name} by {method}", found.data[name].values, np.array(f)[:, part, None], limit)


def draw_two_layers(rng: np.random.Generator) -> Question:
    steps = {"rate": ask.spread(rng, 0.005, 0.05), "steps": 20, "richness": ask.spread(rng, 0.05, 5.0), "flow": True}
    words = {"kind": ask.pick(rng, "DNN", "RNN"), "depth": 1, "activation": "linear"}
    return Question(words, [[1.0]], [ask.spread(rng, 0.2, 3.0)], training=steps)


def differential_equation(q: Question) -> None:
    """Eqs. 78, 79 of Bordelon & Pehlevan (2022) for one sample: df/dt = 2√(1 + γ0²f²)(y − f)."""
    gamma, y, times = q.training["richness"], q.y[0], q.steps.times
    slope = lambda t, f: 2 * np.sqrt(1 + gamma**2 * f**2) * (y - f)  # noqa: E731
    expected = solve_ivp(slope, (0, times[-1]), [0.0], t_eval=times, rtol=1e-11, atol=1e-13).y[0]
    found = solve(q)
    close("prediction", found.prediction.values[:, 0, 0], expected, stated(found)[1] + 1e-8 * abs(y))


def changed(q: Question) -> None:
    """Another order, the other sign of all labels, a test input, one state with tied weights: the same outputs."""
    x, y, plain = q.task.x, q.task.y, solve(q)
    f = plain.prediction.values
    limit = 2 * stated(plain)[1] + 1e-7 * np.abs(f).max() + 1e-12
    ask_again = lambda x, y, **test: solve(q, wf.Task(x, y, q.supervised, **test)).prediction.values  # noqa: E731
    close("in another order", ask_again(x[::-1], y[::-1])[..., ::-1, :], f, limit)
    close("of opposite labels", -ask_again(x, -y), f, limit)
    close("with a test input", ask_again(x, y, x_test=x[:1] / 2), f, limit)
    if q.net.depth == 1:
        tied = replace(q.net, weights="tied", biases="tied", inputs="tied")
        close("one state", solve(q, net=tied).prediction.values, f, limit)


def stated_errors(q: Question) -> None:
    """z = (f − f with 16 times the paths) / stderr over seeds: its mean square, within what Student's law allows."""
    last = lambda paths, seed: solve(q, paths=paths, seed=seed).data.isel(step=-1, output=0, sample=0)  # noqa: E731
    best, runs = last(16384, q.seed), [last(1024, q.seed + 1 + i) for i in range(SEEDS)]
    if "prediction_stderr" in best:
        z = [
            float((r.prediction - best.prediction) / np.hypot(r.prediction_stderr, best.prediction_stderr))
            for r in runs
        ]
        drawn = np.random.default_rng(0).standard_t(BATCHES - 1, (200_000, SEEDS)) ** 2
        square, limit = np.mean(np.square(z)), 2 * np.sort(drawn.mean(axis=1))[-20]
        if square > limit or np.abs(z).max() > stats.t.isf(1e-8, BATCHES - 1):
            raise Defect(
                f"standard errors too small: mean square of z {square:.3g} (limit {limit:.3g}), {np.round(z, 1)}"
            )
