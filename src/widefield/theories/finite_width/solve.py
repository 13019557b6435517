"""`widefield.finite_width`: how far a network of given width is from its infinitely wide limit."""

import importlib.util
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from widefield.answer import legacy
from widefield.answer.boundary import choose_quantities, describe_bytes, memory_budget, x64
from widefield.answer.certificate import SolveError, Status
from widefield.answer.progress import bar
from widefield.answer.solution import Solution, make_solution
from widefield.question import checks
from widefield.question.network import Network
from widefield.question.task import Task
from widefield.theories.finite_width import deep
from widefield.theories.finite_width.fields import DIMS, fields_of, relative_variance
from widefield.theories.finite_width.march import Wants, feeding_widths, march, steps
from widefield.theories.finite_width.verify import residual

MAX_QUARTETS = 3000  # four-point averages per layer that are made without being asked for
TRUSTED = 0.3  # of V/(nK²), the variance of a kernel entry relative to its square
RECURRENT = "widefield.theories.finite_width.recurrent"
NEEDS_CORRECTION = ("correction", "covariance")
NEEDS_TENSOR = ("vertex", "connected")


@x64
def finite_width(
    network: Network,
    task: Task,
    *,
    width: int,
    quantities: Iterable[str] | None = None,
    quadruples: Any = None,
    rtol: float = 1e-8,
    progress: bool | None = None,
    throw: bool = True,
) -> Solution:
    r"""Kernel, four-point vertex and first correction of a random network of finite ``width``.

    .. math::  \mathbb{E}\,z_1z_2 = K_{12} + \tfrac1n G_{12} + O(n^{-2}), \qquad
               \mathrm{Cov}(\hat G_{12}, \hat G_{34}) = \tfrac1n V_{(12)(34)} + O(n^{-2})

    Eqs. 4.104–4.106 and 4.114–4.119 of Roberts, Yaida & Hanin, chapter 4, without inverse metrics (see
    `widefield.theories.finite_width.deep`): duplicate, opposite and zero inputs and more inputs than dimensions are fine.

    Layers are 1 … depth + 1, the last one the readout (with ``readout_variance=None`` it is the last hidden state);
    :math:`n` is the number of neurons that feed the layer, ``network.sizes(width)``. Fields over (layer, sample, …):

    - ``kernel`` K, ``correction`` G, ``covariance`` = K + G/n;
    - ``vertex`` V over four samples and ``connected`` = V/n, by default up to some thousand different averages;
      ``vertex_pairs`` (layer, sample, sample\_, pair, pair\_), V over {11, 12, 22} × {11, 12, 22} of all pairs; with
      ``quadruples`` (an array of rows of four sample indices) ``vertex_quadruples`` (layer, quadruple);
    - ``kurtosis`` = 3V_{(11)(11)}/(nK²), the excess kurtosis of an output; ``kernel_variance`` = V_{(12)(12)}/n, the
      variance over networks of a kernel entry; ``neuron_correlation`` = V_{(11)(11)}/(2nK²), the correlation of the squares
      of two neurons; ``ratio`` (layer,), the largest V_{(11)(11)}/(nK²): the expansion is in this number, which grows with
      depth over width. Beyond 0.3 a note says so; the certificate's diagnostics hold ``trusted_layers`` and the
      ``width_needed`` for all of them.

    Method: closed-form averages or Hermite series. Everything on pairs of samples costs O(depth·P²), ``vertex`` needs
    C(P+3, 4) four-point averages per layer.
    Error: averages are good to ``rtol`` of their scale; the residual re-evaluates the recursions by quadrature.
    Limits: first order in 1/n. Activations with jumps are refused; with kinks other than relu, leaky relu and abs there
    is no ``correction``. Tied weights are the business of the recurrent expansion.
    """
    sizes = _check(network, task, width)
    rtol = checks.tolerance("rtol", rtol, 1e-11)
    options = {"quantities": quantities, "quadruples": quadruples, "rtol": rtol, "progress": progress, "throw": throw}
    if not _is_deep(network, task):
        return _solve_recurrent(network, task, width=width, **options)
    return _solve_deep(network, task, sizes, width, **options)


def _solve_deep(network, task, sizes, width, *, quantities, quadruples, rtol, progress, throw) -> Solution:
    start = time.perf_counter()
    x, back = _merged(task.sequences(network.depth))
    chosen = _quadruples(quadruples, task.n_samples)
    names, left_out, notes = _plan(network, task, quantities, chosen, len(x))
    wants = _wants(names, None if chosen is None else back[chosen])
    options = {"width": int(width), "quantities": list(names), "n_quadruples": 0 if chosen is None else len(chosen)}
    facts, layers = _solve(network, x, sizes, wants, rtol, progress)
    fields, coords = fields_of(names, layers, feeding_widths(network, sizes), back, chosen)
    diagnostics, more = _trust(network, sizes, layers, width)
    certificate = legacy.certificate(
        theory="finite_width",
        tolerance=rtol,
        steps=len(layers),
        wall_time=time.perf_counter() - start,
        options=options,
        left_out=left_out,
        diagnostics=diagnostics,
        **facts | {"notes": (*task.notes, *notes, *more, *facts.get("notes", ()))},
    )
    return make_solution(fields, certificate, network, task, coords=coords, throw=throw)


def _check(network: Any, task: Any, width: Any) -> tuple[int, ...]:
    if not isinstance(network, Network):
        raise ValueError(
            f"`network` must be a widefield Network such as widefield.DNN(...), got {type(network).__name__}."
        )
    network.refuse_branch("finite_width")
    if not isinstance(task, Task):
        raise ValueError(f"`task` must be a widefield.Task, got {type(task).__name__}.")
    _refuse_tracer(width)
    if deep.refuse(network.activation) == "jumps":
        raise ValueError(
            f"`network` has the activation {network.activation}, which jumps: finite_width needs the derivative of "
            "<φφ> in the variances, which is infinite there."
        )
    task.sequences(network.depth)
    return network.sizes(width)


def _refuse_tracer(width: Any) -> None:
    try:
        checks.reject_tracers(width=width)
    except ValueError:
        raise ValueError(
            "`width` is a JAX tracer: finite_width computes in NumPy and has no core that jit, grad or vmap could trace. "
            "Call it in a loop; of its fields the kernel alone has a traceable core, widefield.theories.prior.core."
        ) from None


def _is_deep(network: Network, task: Task) -> bool:
    """Whether, given a layer, the next one is Gaussian with fresh parameters."""
    if network.depth == 1:
        return True
    n_driven = task.sequences(network.depth).shape[1]
    biases = network.biases == "untied" or not network.bias_variances.any()
    inputs = network.inputs == "untied" or n_driven == 1 or not network.input_variances.any()
    return network.weights == "untied" and biases and inputs


def _solve_recurrent(network: Network, task: Task, **options: Any) -> Solution:
    """Parameters that are used at several states: another expansion, in a module of its own."""
    if importlib.util.find_spec(RECURRENT) is None:
        raise ValueError(
            "`network` must draw its weights, its biases and (where inputs drive several states) its input weights anew "
            "at every state: finite_width does not cover tied parameters."
        )
    recurrent = importlib.import_module(RECURRENT)
    return recurrent.solve_recurrent(network, task, **options)


def _merged(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different inputs, and which of them each sample is."""
    flat = x.reshape(len(x), -1) + 0.0  # no negative zeros
    _, first, back = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return x[first[order]], np.argsort(order)[back.reshape(-1)]


def _quadruples(quadruples: Any, n_samples: int) -> np.ndarray | None:
    if quadruples is None:
        return None
    checks.reject_tracers(quadruples=quadruples)
    index = np.asarray(quadruples)
    if index.ndim != 2 or index.shape[1] != 4 or not len(index) or index.dtype.kind not in "iu":
        raise ValueError(f"`quadruples` must be rows of four sample indices, got an array of shape {index.shape}.")
    if np.any(index < 0) or np.any(index >= n_samples):
        raise ValueError(
            f"`quadruples` must hold sample indices 0 … {n_samples - 1}, got {index.min()} … {index.max()}."
        )
    return index


def _plan(network: Network, task: Task, quantities, chosen, n_different: int):
    """Names of the fields to make, those left out, and why some are not available."""
    n, n_layers = task.n_samples, network.depth + (network.readout_variance is not None)
    lengths = {"pair": 3, "pair_": 3, "layer": n_layers, "quadruple": 0 if chosen is None else len(chosen)}
    available = [name for name in DIMS if name != "vertex_quadruples" or chosen is not None]
    notes: tuple[str, ...] = ()
    if deep.refuse(network.activation):
        available = [name for name in available if name not in NEEDS_CORRECTION]
        notes = (f"no correction: its averages are not known for the kinks of {network.activation}",)
    sizes = {name: 8 * int(np.prod([lengths.get(dim, n) for dim in DIMS[name]])) for name in available}
    expensive: tuple[str, ...] = ()
    n_quartets = n_different * (n_different + 1) * (n_different + 2) * (n_different + 3) // 24
    if quantities is None and n_quartets > MAX_QUARTETS:
        expensive = NEEDS_TENSOR
        notes += (f"vertex would take {n_quartets} four-point averages per layer: ask for it, or for quadruples",)
    kept, left_out = choose_quantities(quantities, {k: v for k, v in sizes.items() if k not in expensive})
    if not kept:
        raise MemoryError(
            f"Not even `kernel` ({describe_bytes(sizes['kernel'])}) fits in {describe_bytes(memory_budget())}."
        )
    return kept, (*left_out, *expensive), notes


def _wants(names: tuple[str, ...], quadruples: np.ndarray | None) -> Wants:
    asked = set(names)
    return Wants(
        pairs=bool(asked - {"kernel", "correction", "covariance", "vertex", "connected", "vertex_quadruples"}),
        correction=bool(asked & set(NEEDS_CORRECTION)),
        tensor=bool(asked & set(NEEDS_TENSOR)),
        quadruples=quadruples if "vertex_quadruples" in asked else None,
    )


def _solve(network: Network, x, sizes, wants: Wants, rtol: float, progress):
    """What the certificate says of the march, and the layers."""
    seconds = 1e-6 * len(x) ** 2 * network.depth * (1 + wants.tensor * len(x) ** 2)
    try:
        with bar("finite width", network.depth, progress, seconds) as advance:
            layers = march(network, x, sizes, wants, rtol, advance)
    except OverflowError as error:
        return {"status": Status.nonfinite, "notes": (str(error),)}, []
    except SolveError as error:
        return {"status": Status.inaccurate, "notes": (str(error),)}, []
    facts: dict[str, Any] = {"status": Status.success, "error": layers[-1].error}
    facts["residual"] = residual(network.activation, layers, steps(network, x, sizes)[1], wants)
    if facts["residual"] is None:
        facts["notes"] = ("no residual: the averages are beyond the reach of the quadrature that would check them",)
    elif not facts["residual"] <= rtol:
        facts["status"] = Status.inaccurate
    return facts, layers


def _trust(network: Network, sizes, layers, width: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """How far down the expansion can be trusted, and a note where it cannot."""
    if not layers or not layers[0].blocks.size:
        return {}, ()
    n = feeding_widths(network, sizes)
    ratio = np.asarray([relative_variance(layer).max() for layer in layers]) / n
    beyond = np.flatnonzero(ratio > TRUSTED)
    needed = int(np.ceil(width * ratio.max() / TRUSTED))
    diagnostics = {"trusted_layers": int(beyond[0]) if len(beyond) else len(layers), "width_needed": needed}
    if not len(beyond):
        return diagnostics, ()
    note = (
        f"beyond the reach of the expansion: V/(nK²) reaches {ratio.max():.2g} (more than {TRUSTED:g} from layer "
        f"{beyond[0] + 1} on); width {needed} or more would do"
    )
    return diagnostics, (note,)
