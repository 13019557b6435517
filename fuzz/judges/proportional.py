"""The proportional limit against lazy closed forms, the dynamics at infinite width, and trained networks."""

from dataclasses import replace

import numpy as np
from scipy.integrate import quad

import widefield as wf
from fuzz import questions as ask
from fuzz.questions import Question
from fuzz.verdicts import answer, close, student


def draw(rng: np.random.Generator) -> Question:
    depth, branch = ask.pick(rng, 1, 2, 3, 5), ask.spread(rng, 0.2, 1.0) if ask.chance(rng, 0.25) else 0
    words = {"kind": "ResNet" if branch else "DNN", "depth": depth, "activation": "linear"}
    steps = {"rate": ask.spread(rng, 0.05, 0.2) / (1 + depth) / (1 + branch) ** 2, "steps": ask.pick(rng, 2, 5, 12)}
    steps |= {"richness": ask.spread(rng, 0.1, 2.0), "centered": ask.chance(rng, 0.3)}
    teacher = ask.teacher(rng)
    steps |= {"flow": True} if "batch_ratio" not in teacher and ask.chance(rng, 0.2) else {}
    words |= {"branch": branch} if branch else {}
    call = {"width_ratio": ask.pick(rng, 0.5, 1.0, 2.0)}
    return Question(words, teacher=teacher, training=steps, call=call)


def networks(q: Question) -> None:
    """Test losses of networks of two sizes, extrapolated in 1/D."""
    nouns, options = (q.net, q.data, q.steps), q.call | {"quantities": ("test_loss",)}
    found = answer(wf.proportional, *nouns, **options)
    options |= {"replicates": 240}
    trials = [answer(wf.simulate.proportional, *nouns, dimension=d, seed=q.seed + d, **options) for d in (96, 48)]
    theory, (large, small) = found.test_loss.values, (trial.test_loss.values for trial in trials)
    offset = np.abs(large.mean(0) - small.mean(0)).max()
    bound = (found.certificate.error or 0.0) * np.abs(theory) + offset**2 / np.abs(theory).max() + offset / 10
    student("test loss", theory, 2 * large - small, bound=bound)


def draw_lazy(rng: np.random.Generator) -> Question:
    words = {"kind": "DNN", "depth": ask.pick(rng, 1, 2, 4, 8, 12), "activation": "linear"}
    steps = {"rate": ask.spread(rng, 0.01, 0.3) / (1 + words["depth"]), "steps": ask.pick(rng, 1, 4, 15, 60)}
    return Question(words, teacher=ask.teacher(rng), training=steps | {"richness": 0.0, "centered": True})


def lazy(q: Question) -> None:
    """Infinite width, richness 0: linear regression at the rate η(L+1), by the Marchenko–Pastur law or by moments."""
    found = answer(wf.proportional, q.net, q.data, q.steps, quantities=("test_loss",))
    rate, times = q.training["rate"] * (q.network["depth"] + 1), range(q.training["steps"] + 1)
    noise, alpha = q.teacher.get("label_noise", 0.0), q.teacher.get("data_ratio")
    expected, fresh = [1 + noise], q.teacher.get("batch_ratio", np.inf)
    for _ in times[1:]:
        expected.append((expected[-1] - noise) * (1 - rate) ** 2 + rate**2 * expected[-1] / fresh + noise)
    if alpha is not None:
        middle, radius = 1 + 1 / alpha, 2 / np.sqrt(alpha)

        def mean(of) -> float:
            """Over the eigenvalues z = middle + radius sin s that are not zero."""
            z = lambda s: middle + radius * np.sin(s)  # noqa: E731
            weight = lambda s: alpha * (radius * np.cos(s)) ** 2 / (2 * np.pi * z(s)) if np.cos(s) > 1e-9 else 0.0  # noqa: E731
            return quad(lambda s: of(z(s)) * weight(s), -np.pi / 2, np.pi / 2, limit=400, epsrel=1e-10, epsabs=1e-13)[0]

        decay = lambda t, z: (1 - rate * z) ** t  # noqa: E731
        left = [mean(lambda z, t=t: decay(2 * t, z)) for t in times]
        fitted = [mean(lambda z, t=t: (1 - decay(t, z)) ** 2 / max(z, 1e-300)) for t in times]
        expected = max(0.0, 1 - alpha) + np.array(left) + noise / alpha * np.array(fitted) + noise
    close("test loss", found.test_loss.values, expected, 1e-6 * np.max(expected))


def draw_population(rng: np.random.Generator) -> Question:
    q = draw(rng)
    words = {"kind": "DNN", "depth": q.network["depth"], "activation": "linear"}
    return replace(q, network=words, teacher={}, call={}, training=q.training | {"flow": False})


def at_infinite_width(q: Question) -> None:
    """On the population an infinitely wide network learns one direction, as the dynamics of one sample: x·x/D = 1, y = 1."""
    found = answer(wf.proportional, q.net, wf.Teacher(), q.steps, quantities=("test_loss",))
    one = answer(wf.dynamics, q.net, wf.Task(np.ones((1, 1)), np.ones(1)), q.steps, quantities=("prediction",))
    close("test loss", found.test_loss.values, (1 - one.prediction.values[:, 0, 0]) ** 2, 1e-6)
