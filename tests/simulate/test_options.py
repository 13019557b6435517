"""Options of every simulator: what makes no sense is a `ValueError` that names the argument, at once."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widefield as wf

RNG = np.random.default_rng(0)
TASK = wf.Task(RNG.standard_normal((4, 3)), np.array([1.0, -1.0, 1.0, -1.0]))
TRAINING = wf.Training(0.05, 3)
SMALL = {"width": 10, "replicates": 4, "seed": 0}
CALLS = {
    "prior": ((wf.DNN(2, "tanh"), TASK), SMALL),
    "finite_width": ((wf.DNN(2, "tanh"), TASK), SMALL | {"groups": 2}),
    "posterior": ((wf.RNN(2, "tanh"), TASK), SMALL | {"temperature": 0.3, "draws": 8, "warmup": 2}),
    "dynamics": ((wf.DNN(2, "tanh"), TASK, TRAINING), SMALL),
    "proportional": (
        (wf.DNN(2, "linear"), wf.Teacher(data_ratio=1.5), TRAINING),
        {"width_ratio": 1.0, "dimension": 10, "replicates": 4, "seed": 0},
    ),
}
COUNTS = {
    "prior": ("width", "replicates", "n_outputs"),
    "finite_width": ("width", "replicates", "groups"),
    "posterior": ("width", "replicates", "draws", "warmup", "updates"),
    "dynamics": ("width", "replicates"),
    "proportional": ("dimension", "replicates"),
}
NUMBERS = {"posterior": ("temperature", "rate"), "proportional": ("width_ratio",)}
FLAGS = {"posterior": ("precondition",), "proportional": ("paired",)}
WORDS = {"prior": ("method",), "posterior": ("sampler", "start")}

NEVER = (
    "nonsense", "", 1j, np.nan, np.inf, -np.inf, np.array([object()]), [], np.zeros(0), np.ones((1, 2)), {"a": 1},
    np.array([3]), np.datetime64("nat"), b"hmc", int, [None], TASK,
)  # fmt: skip
NOT_A_COUNT = (*NEVER, True, np.True_, 2.0, np.float64(3), -1, 10**30, 10**400, [[1], [2, 3]], (i for i in (1,)))
NOT_A_NUMBER = (*NEVER, True, np.True_, 0, -1, 10**400, "0.3")
NOT_A_FLAG = (*NEVER, 1, 0, "True", [True])
NOT_A_WORD = (*(value for value in NEVER if not isinstance(value, wf.Task)), 3, None, ["dense"])
NOT_NAMES = (*NEVER, 3, True, ["loss", 3], np.array("loss"), (None,))
TABLE = [
    *[(call, name, NOT_A_COUNT) for call, names in COUNTS.items() for name in names],
    *[(call, name, NOT_A_NUMBER) for call, names in NUMBERS.items() for name in names],
    *[(call, name, NOT_A_FLAG) for call in CALLS for name in ("progress", "throw", *FLAGS.get(call, ()))],
    *[(call, name, NOT_A_WORD) for call, names in WORDS.items() for name in names],
    *[(call, "quantities", NOT_NAMES) for call in CALLS],
    *[(call, "seed", (*NEVER, -1, True, 2.0, None)) for call in CALLS],
    ("dynamics", "at", (*NEVER[:12], True, 2.5, 4, -5, [0, 9], [[1], [2, 3]], np.ma.array([1, 2], mask=[0, 1]))),
]


@pytest.mark.parametrize(("call", "name", "values"), TABLE, ids=[f"{call}-{name}" for call, name, _ in TABLE])
def test_what_makes_no_sense_is_named_at_once(call, name, values):
    nouns, options = CALLS[call]
    for value in values:
        if call == "dynamics" and name == "at" and isinstance(value, np.ndarray) and value.shape == (1,):
            continue  # one step
        began = time.process_time()
        with pytest.raises(ValueError, match=f"`{name}`"):
            getattr(wf.simulate, call)(*nouns, **options | {name: value})
        assert time.process_time() - began < 1, f"{name}={value!r}"


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, names in COUNTS.items() for name in names])
def test_tracers_are_named(call, name):
    nouns, options = CALLS[call]

    def traced(value):
        getattr(wf.simulate, call)(*nouns, **options | {name: value})
        return value

    with pytest.raises(ValueError, match=f"`{name}`"):
        jax.jit(traced)(jnp.asarray(3))


@pytest.mark.parametrize("call", CALLS)
def test_integers_of_numpy_and_large_seeds_are_fine(call):
    nouns, options = CALLS[call]
    numpy = {name: np.int32(value) if isinstance(value, int) else value for name, value in options.items()}
    extra = {"throw": False} | ({"draws": 2, "warmup": 0} if call == "posterior" else {})
    run = getattr(wf.simulate, call)
    same = run(*nouns, **options | extra), run(*nouns, **numpy | extra)
    for name in same[0].data:
        np.testing.assert_array_equal(same[0].data[name], same[1].data[name])
    assert run(*nouns, **options | extra | {"seed": 2**62}).certificate.seed == 2**62
