"""The table of contracts: every public call that gives an answer, with a small question, and the core of every theory.

A row states the call, its nouns and options, which argument to trace, an example that fails, one that is too large, and
the quantities to ask for alone. Where a check does not apply, the row says why. `test_contracts` runs every check over
every row, so that a new call needs one new row and no new test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import widefield as wf
from widefield.gaussian import kernel_for
from widefield.theories.dynamics.march import step as dynamics_march
from widefield.theories.dynamics.problem import problem as dynamics_problem
from widefield.theories.posterior.linear import free_energy as posterior_linear
from widefield.theories.posterior.problem import problem_of
from widefield.theories.prior import core as prior_core
from widefield.theories.proportional import march as proportional_march
from widefield.theories.proportional.march.isotropic import Source

Status = wf.Status


class Case(NamedTuple):
    """What to change in a row's question, and the status or the words that follow."""

    changes: Mapping[str, Any]
    expected: Any = None


@dataclass(frozen=True, eq=False)
class Row:
    """One public call. ``fails`` and ``large`` are a reason, in words, where the check does not apply.

    ``question`` and the changes of cases may hold functions without arguments in place of solutions: these are asked for
    when they are needed. ``traced`` is an option, or a field of a noun such as ``"training.rate"``.
    """

    name: str
    call: Callable[..., Any]
    question: Mapping[str, Any]
    traced: str
    fails: Case | str
    large: Case | str
    alone: tuple[str, ...] = ()  # quantities to ask for by themselves; none: all of them
    options: Mapping[str, Any] = field(default_factory=dict)
    no_bar: str = ""  # why there is no progress to show

    def ask(self, **changes: Any) -> Any:
        """The call, with some of its nouns and options changed."""
        arguments = {**self.question, **self.options, **changes}
        return self.call(**{name: made(value) for name, value in arguments.items()})

    def with_value(self, value: Any) -> Any:
        """The call with another value of the traced argument."""
        noun, _, name = self.traced.rpartition(".")
        return self.ask(**{noun: replace(self.question[noun], **{name: value})} if noun else {name: value})

    @property
    def traced_value(self) -> float:
        noun, _, name = self.traced.rpartition(".")
        return float(getattr(self.question[noun], name) if noun else self.options.get(name, 0.5))

    @property
    def certified_as(self) -> str:
        return self.name.split(" ")[0]


class Later:
    """A solution that is asked for when it is needed."""

    def __init__(self, make: Callable[[], wf.Solution]):
        self.make = lru_cache(make)


def made(value: Any) -> Any:
    return value.make() if isinstance(value, Later) else value


@lru_cache
def answer_of(row: Row) -> Any:
    """The answer to the row's question, asked once for all checks."""
    return row.ask()


def solution_of(answer: Any) -> wf.Solution:
    """The solution of an answer, which may be a frozen class around one."""
    if isinstance(answer, wf.Solution):
        return answer
    assert is_dataclass(answer) and answer.__dataclass_params__.frozen, f"{type(answer).__name__} is not frozen"
    (solution,) = (v for f in fields(answer) if isinstance(v := getattr(answer, f.name), wf.Solution))
    return solution


# Questions.

RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(2, 3)), RNG.normal(size=2)
PLAIN, LABELED = wf.Task(X), wf.Task(X, Y, x_test=X[:1] + 0.3)
UNIT = wf.Task(np.ones((1, 1)), np.ones(1))
MANY = wf.Task(np.ones((1000, 2)), np.ones(1000))
VARIANCES = {"weight_variance": 1.4, "bias_variance": 0.1, "readout_variance": 1.2}
DEEP, TIED = wf.DNN(2, "relu", **VARIANCES), wf.RNN(2, "erf", **VARIANCES)
LINEAR, TANH, RECURRENT = wf.DNN(2, "linear"), wf.DNN(2, "tanh"), wf.RNN(3, "linear")
DESCENT = wf.Training(0.1, 4, richness=1.3)
TEACHER, TRAINING = wf.Teacher(data_ratio=1.5, label_noise=0.2), wf.Training(0.05, 8, richness=0.8)
DECAY = wf.Training(0.1, 300, richness=2.0, weight_decay=0.4)
FINITE = {"replicates": 3, "seed": 4}
CHAINS = {"temperature": 0.3, "width": 12, "draws": 300, "warmup": 100} | FINITE

OVERFLOW = {"network": wf.DNN(10, "relu", weight_variance=1e40)}
EXPLOSIVE = {"network": wf.DNN(12, "exp", weight_variance=50.0)}
FAST = {"training": wf.Training(40.0, 8)}
SLOW = {"training": replace(DESCENT, steps=2000)}
CLOSE = np.stack([X[0], X[0] + 1e-3 * X[1]])
GIVEN = "made of the solution that is given, whose size is known"

# Theories.

PRIOR = Row(
    "prior", wf.prior, {"network": TIED, "task": LABELED}, "noise", options={"noise": 0.1},
    fails=Case(EXPLOSIVE, Status.nonfinite), large=Case({"task": MANY, "quantities": "hidden"}, "hidden"),
)  # fmt: skip
UNTIED_WIDTH = Row(
    "finite_width untied", wf.finite_width, {"network": DEEP, "task": PLAIN}, "width", options={"width": 30},
    fails=Case(OVERFLOW, Status.nonfinite), large=Case({"task": MANY, "quantities": "vertex"}, "vertex"),
    alone=("kernel", "correction", "kernel_variance", "vertex"),
)  # fmt: skip
TIED_WIDTH = Row(
    "finite_width tied", wf.finite_width, {"network": TIED, "task": PLAIN}, "width", options={"width": 30},
    fails=Case({"network": wf.RNN(10, "relu", weight_variance=1e40)}, Status.nonfinite),
    large=Case({"task": MANY, "quantities": "pair_vertex"}, "pair_vertex"),
    alone=("kernel", "correction", "kernel_variance", "vertex"),
)  # fmt: skip
WIDTH_REGRESSION = Row(
    "finite_width regression", wf.finite_width, {"network": DEEP, "task": LABELED}, "noise",
    options={"width": 60, "noise": 0.1}, fails=Case(OVERFLOW, Status.nonfinite),
    large=Case({"task": MANY, "quantities": "vertex"}, "vertex"),
)  # fmt: skip
LINEAR_POSTERIOR = Row(
    "posterior linear", wf.posterior, {"network": RECURRENT, "task": LABELED}, "temperature",
    options={"temperature": 0.3}, fails=Case({"task": wf.Task(X, 5 * Y), "max_steps": 1}, Status.not_converged),
    large=Case({"task": MANY, "quantities": "hidden"}, "hidden"),
)  # fmt: skip
NONLINEAR_POSTERIOR = Row(
    "posterior nonlinear", wf.posterior, {"network": wf.RNN(2, "erf"), "task": UNIT}, "temperature",
    options={"temperature": 0.5}, fails=Case({"max_steps": 1, "task": wf.Task(UNIT.x, [3.0])}, Status.not_converged),
    large=Case({"task": MANY, "quantities": "hidden"}, "hidden"), alone=("hidden", "prediction"),
)  # fmt: skip
PERTURBATIVE_POSTERIOR = Row(
    "posterior perturbative", wf.posterior, {"network": RECURRENT, "task": wf.Task(X, 0.1 * Y)}, "temperature",
    options={"temperature": 1.0, "method": "perturbative", "rtol": 0.1}, fails=Case({"rtol": 1e-10}, Status.inaccurate),
    large=Case({"task": MANY}, "nodes"), no_bar="a closed form",
)  # fmt: skip
EXACT_DYNAMICS = Row(
    "dynamics exact", wf.dynamics, {"network": LINEAR, "task": LABELED, "training": DESCENT}, "training.rate",
    fails=Case(FAST, Status.diverged), large=Case(SLOW | {"quantities": "feature_kernel"}, "steps"),
)  # fmt: skip
SAMPLED_DYNAMICS = Row(
    "dynamics sampled", wf.dynamics, {"network": TANH, "task": LABELED, "training": DESCENT}, "training.rate",
    options={"paths": 256}, fails=Case(FAST, Status.diverged),
    large=Case(SLOW | {"quantities": "feature_kernel"}, "steps"), alone=("prediction", "feature_kernel"),
)  # fmt: skip
LAZY_DYNAMICS = Row(
    "dynamics lazy", wf.dynamics, {"network": TANH, "task": LABELED, "training": DESCENT}, "training.rate",
    options={"method": "lazy"}, fails=Case(FAST, Status.diverged),
    large=Case(SLOW | {"quantities": "feature_kernel"}, "steps"), alone=("loss", "ntk"),
)  # fmt: skip
PROPORTIONAL = Row(
    "proportional", wf.proportional, {"network": LINEAR, "teacher": TEACHER, "training": TRAINING}, "width_ratio",
    options={"width_ratio": 0.7}, fails=Case({"training": wf.Training(5.0, 8)}, Status.diverged),
    large=Case({"training": replace(TRAINING, steps=2000)}, "steps"),
)  # fmt: skip

# What is derived from them.

SEARCH = {"network": wf.DNN(1, "linear"), "teacher": TEACHER, "training": TRAINING}
TOO_FAST = Case({"rates": [3.0, 5.0]}, Status.incomplete)
LONG_SEARCH = Case({"training": replace(TRAINING, steps=2000)}, "steps")
TRANSITION = Row(
    "transition", wf.transition, {"network": RECURRENT, "task": UNIT}, "temperature",
    options={"temperature": 1.0, "points": 4}, fails=Case({"max_steps": 1}, Status.incomplete),
    large=Case({"task": MANY}, "nodes"),
)  # fmt: skip
LANDSCAPE = Row(
    "landscape", wf.landscape, {"network": RECURRENT, "task": UNIT}, "temperature",
    options={"temperature": 1.0, "values": [0.0, 0.3]},
    fails=Case({"task": wf.Task(UNIT.x, [3.0]), "values": [-0.9, 0.9], "max_steps": 1}, Status.not_converged),
    large=Case({"task": MANY}, "nodes"),
)  # fmt: skip
TRICRITICAL = Row(
    "tricritical", wf.tricritical, {"network": RECURRENT, "task": UNIT}, "temperature", options={"temperature": 1.0},
    fails=Case({"max_steps": 1}, Status.incomplete), large=Case({"task": MANY}, "nodes"),
)  # fmt: skip
WEIGHT_OUTLIERS = Row(
    "weight_outliers", wf.weight_outliers, {"solution": Later(partial(answer_of, LINEAR_POSTERIOR))}, "solution",
    fails=Case(
        {"solution": Later(lambda: LINEAR_POSTERIOR.ask(**LINEAR_POSTERIOR.fails.changes, throw=False))},
        Status.not_converged,
    ), large=GIVEN,
)  # fmt: skip
DEPTH_LIMIT = Row(
    "depth_limit", wf.depth_limit, {"network": TANH}, "rtol", options={"rtol": 1e-9},
    fails="the fixed point is found to roundings, or there is none: both are answers", large="numbers alone",
)  # fmt: skip
CRITICALITY = Row(
    "criticality", wf.criticality, {"network": wf.DNN(1, "relu", weight_variance=2.0)}, "correlation",
    options={"layers": 16, "correlation": 0.4}, fails=Case({"network": wf.DNN(1, "relu", weight_variance=1e300)}, Status.nonfinite),
    large="two samples, whatever the depth",
)  # fmt: skip
OF_WIDTH = {"solution": Later(partial(answer_of, UNTIED_WIDTH))}
COUPLINGS = Row(
    "couplings", wf.couplings, OF_WIDTH, "rtol", options={"rtol": 1e-6},
    fails=Case({"solution": Later(lambda: UNTIED_WIDTH.ask(task=wf.Task(CLOSE))), "rtol": 1e-12}, Status.inaccurate),
    large=GIVEN,
)  # fmt: skip
NEURON_AVERAGE = Row(
    "neuron_average", wf.neuron_average, OF_WIDTH | {"function": jnp.square}, "rtol", options={"rtol": 1e-8},
    fails=Case({"function": lambda z: jnp.abs(z - 0.3)}, Status.inaccurate), large=GIVEN,
)  # fmt: skip
NEURON_COVARIANCE = Row(
    "neuron_covariance", wf.neuron_covariance, OF_WIDTH | {"function": jnp.square, "other": jnp.square}, "rtol",
    options={"rtol": 1e-8},
    fails=Case({"function": lambda z: jnp.abs(z - 0.3)}, Status.inaccurate), large=GIVEN,
)  # fmt: skip
OPTIMAL_RATE = Row(
    "optimal_rate", wf.optimal_rate, SEARCH, "width_ratio", options={"width_ratio": 1.0}, fails=TOO_FAST,
    large=LONG_SEARCH,
)  # fmt: skip
RATE_SWEEP = Row(
    "rate_sweep", wf.rate_sweep, SEARCH, "training.richness", options={"rates": [0.02, 0.05]},
    fails="runs that diverge are counted, not failed: a sweep is there to find them", large=LONG_SEARCH,
)  # fmt: skip
RATE_TRANSFER = Row(
    "rate_transfer", wf.rate_transfer, SEARCH, "training.richness", options={"over": "width", "values": [0.5, 2.0]},
    fails=TOO_FAST, large=LONG_SEARCH,
)  # fmt: skip
LOSS_EXPONENT = Row(
    "loss_exponent", wf.loss_exponent, {"network": wf.DNN(1, "linear"), "training": wf.Training(0.3, 16, richness=0.0)},
    "source", options={"source": 0.8, "capacity": 1.5, "rtol": 0.5}, fails=Case({"rtol": 1e-4}, Status.inaccurate),
    large=Case({"training": wf.Training(0.3, 4000, richness=0.0)}, "steps"),
)  # fmt: skip
ONE_INPUT = {"network": wf.DNN(1, "tanh"), "task": wf.Task([[1.1, 0.3]], [1.0]), "training": DESCENT}
NEURON_DENSITY = Row(
    "neuron_density", wf.neuron_density, ONE_INPUT, "reach", options={"nodes": 5, "reach": 3.0},
    fails=Case({"training": wf.Training(1.0, 6, richness=4.0)}, Status.inaccurate), large=Case({"nodes": 3000}, "nodes"),
)  # fmt: skip
REPRESENTER = {"network": wf.DNN(1, "linear"), "task": wf.Task(X, [2.0, -1.2])}
REGULARIZED = Row(
    "regularized_prediction", wf.regularized_prediction,
    {"solution": Later(lambda: wf.dynamics(**REPRESENTER, training=DECAY, quantities=("prediction", "ntk")))}, "rtol",
    options={"rtol": 1e-3}, fails=Case({"step": 3}, Status.inaccurate), large=GIVEN,
)  # fmt: skip

SWEEP = Row(
    "sweep", wf.sweep, {"call": "prior", "network": TIED, "task": LABELED}, "noise",
    options={"over": {"network.weight_variance": [0.5, 1.0]}, "noise": 0.1},
    fails="a point that fails is a status: tests/sweep", large=Case({"task": MANY, "quantities": "hidden"}, "hidden"),
)  # fmt: skip

# Finite networks.

SIMULATED_PRIOR = Row(
    "simulate.prior", wf.simulate.prior, {"network": TIED, "task": PLAIN}, "width", options={"width": 10} | FINITE,
    fails=Case(EXPLOSIVE, Status.nonfinite), large=Case({"task": MANY, "quantities": "hidden"}, "hidden"),
    alone=("output", "draw"),
)  # fmt: skip
SIMULATED_WIDTH = Row(
    "simulate.finite_width", wf.simulate.finite_width, {"network": DEEP, "task": PLAIN}, "width",
    options={"width": 10, "replicates": 8, "groups": 2, "seed": 4}, fails=Case(EXPLOSIVE, Status.nonfinite),
    large=Case({"task": MANY, "quantities": "connected"}, "connected"), alone=("covariance", "vertex"),
)  # fmt: skip
SIMULATED_POSTERIOR = Row(
    "simulate.posterior", wf.simulate.posterior, {"network": RECURRENT, "task": LABELED}, "temperature", options=CHAINS,
    fails=Case({"replicates": 1}, Status.not_converged), large=Case({"width": 2000}, "width"), alone=("hidden", "energy"),
)  # fmt: skip
SIMULATED_DYNAMICS = Row(
    "simulate.dynamics", wf.simulate.dynamics, {"network": TANH, "task": LABELED, "training": DESCENT}, "width",
    options={"width": 12} | FINITE, fails=Case({"training": wf.Training(1e3, 20)}, Status.diverged),
    large=Case({"width": 3000}, "width"), alone=("loss", "feature_kernel"),
)  # fmt: skip
SIMULATED_PROPORTIONAL = Row(
    "simulate.proportional", wf.simulate.proportional, {"network": LINEAR, "teacher": TEACHER, "training": TRAINING},
    "width_ratio", options={"dimension": 10, "width_ratio": 1.2} | FINITE,
    fails=Case({"training": wf.Training(3.0, 60)}, Status.diverged), large=Case({"dimension": 2000}, "dimension"),
    alone=("test_loss",),
)  # fmt: skip
EXTRAPOLATE = Row(
    "simulate.extrapolate", wf.simulate.extrapolate,
    {"wide": Later(lambda: SIMULATED_PRIOR.ask(width=20, seed=5)), "narrow": Later(partial(answer_of, SIMULATED_PRIOR))},
    "wide", fails=Case({"wide": Later(lambda: SIMULATED_PRIOR.ask(**EXPLOSIVE, width=20, seed=5, throw=False)),
        "narrow": Later(lambda: SIMULATED_PRIOR.ask(**EXPLOSIVE, throw=False))}, Status.nonfinite),
    large=GIVEN,
)  # fmt: skip

ROWS = tuple(value for value in list(globals().values()) if isinstance(value, Row))

# Public callables that give no answer of their own, and what they give.

NO_ANSWER = {
    "DNN": "a network", "RNN": "a network", "ResNet": "a network", "compare": "a table of two answers",
    "load": "an answer from a file", "alignment": "a number", "cka": "a number", "mmd2": "a number",
    "relative_error": "a number", "zscore": "numbers", "tasks.cifar10": "a task", "tasks.digits": "a task",
    "tasks.gaussian": "a task", "tasks.rotation": "a task", "cache_compilations": "a folder",
}  # fmt: skip

# Conversions: other questions, with the certificate of the identity that they rest on.

LANGEVIN = wf.Training(0.01, 4, weight_decay=0.5, temperature=0.2)
CONVERSIONS = {
    "convert.bayes": partial(wf.convert.bayes, LINEAR, LANGEVIN),
    "convert.equilibrium": partial(wf.convert.equilibrium, LINEAR, LANGEVIN),
    "convert.proportional": partial(wf.convert.proportional, DESCENT, samples=4, dimension=3),
    "convert.parameterization": partial(wf.convert.parameterization, LINEAR, DESCENT, width=10, dimension=3),
}

# Cores: pure functions of arrays. Theories without one say why.

NO_CORE = {"finite_width": "its recursions are NumPy with adaptive quadrature; the message to a tracer says so"}


class Core(NamedTuple):
    """A pure function, a point to evaluate it at, the step of differences, and the mode of its derivatives.

    Forward mode alone (``reverse=False``) where a loop is as long as what has been met so far.
    """

    function: Callable[..., Any]
    point: tuple[Any, ...]
    step: float = 1e-4
    reverse: bool = True


def output_kernel(activation: str) -> Core:
    """The prior's output and tangent kernel as functions of variances and inputs."""
    network = wf.RNN(2, activation, **VARIANCES)
    kernel = kernel_for(network.activation, 4.0)
    function = lambda variances, x: prior_core.output_kernel(kernel, variances, x)  # noqa: E731
    return Core(function, (prior_core.variances_of(network), jnp.asarray(X[:, None])))


def all_states(activation: str) -> Core:
    """The prior's kernels between all states."""
    network = wf.RNN(2, activation, **VARIANCES)
    kernel, sharing = kernel_for(network.activation, 4.0), prior_core.sharing_of(network)

    def function(variances, x):
        power = jnp.einsum("iad,iad->ai", x, x) / x.shape[-1]
        table = kernel.table(prior_core.node_variances(kernel, variances, power))
        return prior_core.all_states_block(kernel, variances, sharing, table, table, prior_core.overlaps(x, x))

    return Core(function, (prior_core.variances_of(network), jnp.asarray(X[:, None])))


def free_energy() -> Core:
    """The linear posterior's free energy in kernel, readout variance, temperature and labels."""
    layout = posterior_linear.layout_of(problem_of(RECURRENT, LABELED, 0.3))
    A = np.random.default_rng(1).normal(size=(1, 6, 6))
    S = jnp.asarray(np.eye(6) + 0.1 * A @ A.swapaxes(-1, -2))

    def function(kernel, readout, temperature, labels):
        problem = layout.problem._replace(
            readout=readout, temperature=temperature, labels=labels, supervised=np.array([4, 5])
        )
        return posterior_linear.free_energy(0.5 * (kernel + kernel.swapaxes(-1, -2)), layout._replace(problem=problem))[
            0
        ]

    given = layout.problem
    return Core(function, (S, *(jnp.asarray(v, float) for v in (given.readout, given.temperature, given.labels))))


def training_step() -> Core:
    """Outputs and tangent kernel of a sampled tanh network after one update, in the physical parameters."""
    asked = dynamics_problem(TANH, LABELED, DESCENT)
    shape, n_paths = asked.shape, 64
    rng = np.random.default_rng(3)
    draw = lambda *size: jnp.asarray(rng.normal(size=size))  # noqa: E731
    noises = draw(asked.physics.inputs.shape[-1], n_paths), draw(1, n_paths), (draw(1, 32, 32), draw(1, 32, 32))

    def function(rate, richness, weight_variance, readout_variance, labels):
        physics = asked.physics._replace(
            richness=richness, weight_variance=weight_variance, readout_variance=readout_variance, labels=labels
        )
        start = dynamics_march.start(shape, physics, noises)
        _, rows = jax.lax.scan(partial(dynamics_march.step, shape, physics), start, jnp.stack([rate, rate]))
        feature, gradient = rows.feature[1], rows.gradient[1]
        return rows.prediction[1], dynamics_march.tangent_kernel(shape, physics, feature, gradient, 1 / n_paths)

    p = asked.physics
    point = jnp.asarray(0.1), p.richness, p.weight_variance, p.readout_variance, p.labels
    return Core(function, point, reverse=False)


def proportional_losses() -> Core:
    """Losses of the proportional limit in the physical parameters."""
    shape = proportional_march.Shape(n_steps=5, depth=2)

    def function(rate, richness, inverse_width, label_noise, inverse_data):
        source = Source(label_noise, jnp.eye(1), inverse_data, jnp.zeros(()))
        parameters = proportional_march.Parameters(
            rate, richness, 1 / richness, inverse_width, jnp.ones(2), source, jnp.ones(())
        )
        return proportional_march.march(parameters, shape).inputs.losses

    return Core(function, tuple(map(jnp.asarray, (np.full(5, 0.05), 0.8, 1.4, 0.2, 0.7))), 1e-3)


CORES: dict[str, Callable[[], Core]] = {
    "prior output_kernel relu": partial(output_kernel, "relu"),
    "prior output_kernel tanh": partial(output_kernel, "tanh"),
    "prior all_states_block relu": partial(all_states, "relu"),
    "prior all_states_block tanh": partial(all_states, "tanh"),
    "posterior free_energy": free_energy,
    "dynamics step": training_step,
    "proportional march": proportional_losses,
}
