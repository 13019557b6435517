"""The table of judges: a new one is one row."""

from functools import partial
from importlib.util import find_spec

from fuzz.judges import answers, arguments, dynamics, finite_width, posterior, prior, proportional, transitions
from fuzz.verdicts import Judge

TABLE = (
    Judge("prior, by quadrature", prior.draw, prior.by_quadrature),
    Judge("prior, dense regression", prior.draw, prior.regression),
    Judge("prior, changed questions", prior.draw, prior.changed),
    Judge("prior, networks", prior.draw_small, prior.networks),
    Judge("finite width, infinite", finite_width.draw, finite_width.infinite),
    Judge("finite width, closed forms", finite_width.draw_closed, finite_width.closed_forms),
    Judge("finite width, networks", finite_width.draw_small, finite_width.networks),
    Judge("posterior, hot or no labels", posterior.draw, posterior.hot),
    Judge("posterior, its prediction", posterior.draw, posterior.predicted),
    Judge("posterior, by hand", posterior.draw_deep, posterior.by_hand),
    Judge("posterior, changed questions", partial(posterior.draw, linear=True), posterior.changed),
    Judge("posterior, chains", posterior.draw_chains, posterior.chains),
    Judge("transition, closed curve", transitions.draw, transitions.closed_curve),
    Judge("transition, both sides", transitions.draw_curved, transitions.on_both_sides),
    Judge("transition, untied", transitions.draw, transitions.untied),
    Judge("landscape", transitions.draw_curved, transitions.landscape),
    Judge("dynamics, lazy limit", partial(dynamics.draw, protocols=False, richness=1e-4), dynamics.lazy),
    Judge("dynamics, differential equation", dynamics.draw_two_layers, dynamics.differential_equation),
    Judge("dynamics, changed questions", partial(dynamics.draw, activations=("linear",)), dynamics.changed),
    Judge("dynamics, networks", dynamics.draw, dynamics.networks),
    Judge("dynamics, noisy networks", dynamics.draw_noisy, dynamics.networks),
    Judge(
        "dynamics, stated errors",
        partial(dynamics.draw, activations=dynamics.CURVED, depths=(2, 3), protocols=False),
        dynamics.stated_errors,
    ),
    Judge("proportional, lazy", proportional.draw_lazy, proportional.lazy),
    Judge("proportional, dynamics", proportional.draw_population, proportional.at_infinite_width),
    Judge("proportional, networks", proportional.draw, proportional.networks),
    Judge("compare, its verdict", answers.draw_small, answers.verdicts),
    Judge("certificates", answers.draw_hard, answers.certified),
    Judge("convert, parameterization", answers.draw_forms, answers.forms),
    *([Judge("bad arguments", arguments.draw, arguments.refused_by_name)] if find_spec("pytest") else ()),
)
