"""What is said of answers: verdicts of comparisons, certificates without exceptions, conversions."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import widefield as wf
from fuzz import questions as ask
from fuzz.judges import posterior, prior
from fuzz.quadrature import functions
from fuzz.questions import Question
from fuzz.verdicts import Defect, Refused, answer, close

TRIALS, RIGHT = 200, 0.05  # comparisons of a right theory; the share of them that may be rejected


def draw_small(rng: np.random.Generator) -> Question:
    return replace(
        prior.draw_small(rng), call={"replicates": int(rng.integers(4, 30)), "mixed": ask.spread(rng, 0.01, 3)}
    )


def verdicts(q: Question) -> None:
    """Replicates that are Gaussian around a theory reject it as often as ``alpha`` says, and always one that is far off."""
    theory = answer(wf.prior, q.net, q.task, quantities=("hidden", "feature"))
    trial = answer(
        wf.simulate.prior, q.net, q.task, width=10**6, seed=0, replicates=2, quantities=("hidden", "feature")
    )
    rng, n = np.random.default_rng(q.seed), q.call["replicates"]
    values = {name: theory.data[name].values for name in ("hidden", "feature")}
    if not all(v.any() for v in values.values()):
        raise Refused("kernels that are zero have no noise")
    mixing = {k: np.eye(v.size) + q.call["mixed"] * rng.normal(size=(v.size, v.size)) for k, v in values.items()}

    def rejected(shift: float) -> bool:
        """Of a theory whose every entry is off by ``shift`` standard deviations of the noise."""
        data = trial.data.drop_dims("replicate")
        for name, v in values.items():
            size = 0.1 * np.abs(v).max()
            noise = rng.normal(size=(n, v.size)) @ mixing[name] / np.linalg.norm(mixing[name], axis=0)
            dims = ("replicate", *theory.data[name].dims)
            data[name] = dims, v + size * (noise.reshape(n, *v.shape) + shift)
        found = wf.compare(theory, replace(trial, data=data), alpha=RIGHT, quantities=("hidden", "feature"))
        return found.verdict == "disagrees"

    count, most = sum(rejected(0.0) for _ in range(TRIALS)), stats.binom.isf(1e-7, TRIALS, RIGHT)
    if count > most:
        raise Defect(f"a right theory is rejected {count} times of {TRIALS} at alpha {RIGHT} (at most {most:.0f})")
    far = 5 * stats.t.isf(RIGHT / 1000, n - 1) / np.sqrt(n)
    if not all(rejected(far) for _ in range(5)):
        raise Defect(f"a theory that is off by {far:.3g} standard deviations of {n} replicates is not rejected")


def draw_hard(rng: np.random.Generator) -> Question:
    call, q = ask.pick(rng, "prior", "finite_width", "posterior"), prior.draw(rng)
    if call == "posterior":
        q = replace(posterior.draw(rng), x_test=None)
        call_options = q.call | ({"max_steps": int(rng.integers(1, 9))} if ask.chance(rng, 0.6) else {})
    else:
        x = np.array(q.x)[: 2 if call == "finite_width" else 5]
        q = replace(
            q, x=x.tolist(), y=q.y[: len(x)], x_test=None, network=q.network | {"depth": min(q.network["depth"], 3)}
        )
        call_options = {"width": int(rng.integers(1, 40))} if call == "finite_width" else {}
    limit = {"rtol": float(f"{10.0 ** -rng.uniform(2, 13):.1e}")} if ask.chance(rng, 0.7) else {}
    return replace(q, call=call_options | limit, teacher={"call": call})


def certified(q: Question) -> None:
    """Success exactly where every check is met; without exceptions the same status, and numbers beside it."""
    call, options = getattr(wf, q.teacher["call"]), q.call
    try:
        quiet = call(q.net, q.task, throw=False, progress=False, **options)
    except ValueError as error:
        answer(call, q.net, q.task, **options)  # refused by name in the same words
        raise Defect(f"throw=False raises {error}") from error
    certificate = quiet.certificate
    met = all(check.value <= check.limit for check in certificate.checks.values()) and certificate.failure is None
    if met != (certificate.status is wf.Status.success):
        raise Defect(f"{certificate.status.name} beside {dict(certificate.checks)}, failure {certificate.failure}")
    try:
        loud = answer(call, q.net, q.task, **options)
    except Refused as why:
        if met or certificate.status.name not in str(why):
            raise Defect(f"without exceptions {certificate.status.name}, with them {why}") from why
        raise
    if not met:
        raise Defect(f"without exceptions {certificate.status.name}, with them success")
    for name in loud.data.data_vars:
        if loud.data[name].dtype.kind == "f":
            close(f"{name} without exceptions", quiet.data[name].values, loud.data[name].values, 0.0)


def draw_forms(rng: np.random.Generator) -> Question:
    words = {"kind": "DNN", "depth": int(rng.integers(1, 5)), "activation": ask.pick(rng, "tanh", "linear", "sin")}
    words |= {name: ask.spread(rng, 0.3, 2.0) for name in ("weight_variance", "input_variance", "readout_variance")}
    steps = {"rate": ask.spread(rng, 0.01, 0.1), "steps": 6, "richness": ask.spread(rng, 0.1, 3.0)}
    n, width = int(rng.integers(1, 4)), ask.pick(rng, 7, 30)
    return Question(words, ask.inputs(rng, n, plain=True), ask.labels(rng, n), training=steps, call={"width": width})


def forms(q: Question) -> None:
    """One network in three parameterizations, by explicit descent from the same normal numbers: the same outputs."""
    net, task, training, width = q.net, q.task, q.steps, q.call["width"]
    rng, depth, D = np.random.default_rng(q.seed), net.depth, task.x.shape[1]
    shapes = [(width, D), *[(width, width)] * (depth - 1), (1, width)]
    start, phi = [rng.normal(size=shape) for shape in shapes], {"tanh": jnp.tanh, "linear": lambda h: h, "sin": jnp.sin}

    def outputs(parameters, layers):
        value = task.x.T
        for k, (weight, layer) in enumerate(zip(parameters, layers)):
            value = layer.multiplier * weight @ (phi[q.network["activation"]](value) if k else value)
        return value[0]

    with jax.enable_x64(True):
        runs = []
        for form in ("mean_field", "mup", "ntk"):
            said = wf.convert.parameterization(net, training, width=width, dimension=D, form=form)
            layers = [said.inputs, *[said.hidden] * (depth - 1), said.readout]
            parameters, rows = [layer.initial_scale * w for w, layer in zip(start, layers)], []
            slope = jax.jit(jax.grad(lambda p, layers=layers: 0.5 * jnp.sum((outputs(p, layers) - task.y) ** 2)))
            for _ in range(q.training["steps"] + 1):
                rows.append(np.asarray(outputs(parameters, layers)))
                parameters = [w - layer.rate * g for w, layer, g in zip(parameters, layers, slope(parameters))]
            runs.append(np.array(rows))
    plain = functions(q.network["activation"])[0]
    h = np.sqrt(net.input_variances[0] / D) * start[0] @ task.x.T
    for w, weight in zip(net.weight_variances, start[1:-1]):
        h = np.sqrt(w / width) * weight @ plain(h)
    first = np.sqrt(net.readout_variance) * (start[-1] @ plain(h))[0] / (width * q.training["richness"])
    size = np.abs(runs[0]).max()
    if np.isfinite(size) and size < 1e3 * (1 + np.abs(first).max()):
        close("the first outputs, Eq. (dynamics.1)", runs[0][0], first, 1e-9 * size)
        for form, run in zip(("mup", "ntk"), runs[1:]):
            close(f"outputs in the form {form}", run, runs[0], 1e-7 * size)
