"""What `widefield` offers, and where it lies: imported when it is first used."""

from . import convert as convert
from . import simulate as simulate
from .answer.certificate import Certificate as Certificate
from .answer.certificate import Check as Check
from .answer.certificate import SolveError as SolveError
from .answer.certificate import Status as Status
from .answer.compile_cache import cache_compilations as cache_compilations
from .answer.files import load as load
from .answer.solution import Solution as Solution
from .compare import compare as compare
from .measures import (
    alignment as alignment,
)
from .measures import (
    cka as cka,
)
from .measures import (
    mmd2 as mmd2,
)
from .measures import (
    relative_error as relative_error,
)
from .measures import (
    zscore as zscore,
)
from .question import tasks as tasks
from .question.activation import Activation as Activation
from .question.network import DNN as DNN
from .question.network import RNN as RNN
from .question.network import Network as Network
from .question.network import ResNet as ResNet
from .question.task import Task as Task
from .question.teacher import Teacher as Teacher
from .question.training import Training as Training
from .sweep import sweep as sweep
from .theories.dynamics import (
    dynamics as dynamics,
)
from .theories.dynamics import (
    neuron_density as neuron_density,
)
from .theories.dynamics import (
    regularized_prediction as regularized_prediction,
)
from .theories.finite_width import (
    couplings as couplings,
)
from .theories.finite_width import (
    criticality as criticality,
)
from .theories.finite_width import (
    finite_width as finite_width,
)
from .theories.finite_width import (
    neuron_average as neuron_average,
)
from .theories.finite_width import (
    neuron_covariance as neuron_covariance,
)
from .theories.posterior import (
    Transition as Transition,
)
from .theories.posterior import (
    landscape as landscape,
)
from .theories.posterior import (
    posterior as posterior,
)
from .theories.posterior import (
    transition as transition,
)
from .theories.posterior import (
    tricritical as tricritical,
)
from .theories.posterior import (
    weight_outliers as weight_outliers,
)
from .theories.prior import depth_limit as depth_limit
from .theories.prior import prior as prior
from .theories.proportional import (
    loss_exponent as loss_exponent,
)
from .theories.proportional import (
    optimal_rate as optimal_rate,
)
from .theories.proportional import (
    proportional as proportional,
)
from .theories.proportional import (
    rate_sweep as rate_sweep,
)
from .theories.proportional import (
    rate_transfer as rate_transfer,
)

__version__: str
