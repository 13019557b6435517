"""widefield: the field theories of wide neural networks as numbers you can trust."""

from importlib.metadata import version as _version

from widefield import convert, simulate
from widefield.answer.certificate import Certificate, Check, SolveError, Status
from widefield.answer.files import load
from widefield.answer.solution import Solution
from widefield.compare import compare
from widefield.measures import alignment, cka, mmd2, relative_error, zscore
from widefield.question import tasks
from widefield.question.activation import Activation
from widefield.question.network import DNN, RNN, Network, ResNet
from widefield.question.task import Task
from widefield.question.teacher import Teacher
from widefield.question.training import Training
from widefield.theories.dynamics import dynamics, neuron_density, regularized_prediction
from widefield.theories.finite_width import couplings, criticality, finite_width, neuron_average, neuron_covariance
from widefield.theories.posterior import Transition, landscape, posterior, transition, tricritical, weight_outliers
from widefield.theories.prior import depth_limit, prior
from widefield.theories.proportional import loss_exponent, optimal_rate, proportional, rate_sweep, rate_transfer

__version__ = _version("widefield")

__all__ = [
    "DNN",
    "RNN",
    "Activation",
    "Certificate",
    "Check",
    "Network",
    "ResNet",
    "Solution",
    "SolveError",
    "Status",
    "Task",
    "Teacher",
    "Training",
    "Transition",
    "alignment",
    "cka",
    "compare",
    "convert",
    "couplings",
    "criticality",
    "depth_limit",
    "dynamics",
    "finite_width",
    "landscape",
    "load",
    "loss_exponent",
    "mmd2",
    "neuron_average",
    "neuron_covariance",
    "neuron_density",
    "optimal_rate",
    "posterior",
    "prior",
    "proportional",
    "rate_sweep",
    "rate_transfer",
    "regularized_prediction",
    "relative_error",
    "simulate",
    "tasks",
    "transition",
    "tricritical",
    "weight_outliers",
    "zscore",
]
