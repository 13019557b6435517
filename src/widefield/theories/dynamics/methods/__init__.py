"""Ways to solve the dynamics, in the order in which they are tried."""

from widefield.theories.dynamics.methods.flow import Flow, LazyFlow
from widefield.theories.dynamics.methods.lazy import Lazy
from widefield.theories.dynamics.methods.method import Method
from widefield.theories.dynamics.methods.paths import March
from widefield.theories.dynamics.methods.perturbative import Perturbative
from widefield.theories.dynamics.methods.perturbative_linear import PerturbativeLinear
from widefield.theories.dynamics.methods.two_layers import TwoLayers
from widefield.theories.dynamics.methods.whitened import Whitened

ORDER: tuple[Method, ...] = (
    LazyFlow(), Lazy(), PerturbativeLinear(), Perturbative(), TwoLayers(), Whitened(), Flow(), March(),
)  # fmt: skip

__all__ = ["ORDER", "Method"]
