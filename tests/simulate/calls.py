"""Simulators called by keywords, which tests change one at a time: each goes to the noun that it belongs to."""

from dataclasses import fields

import widefield as wf

TRAINING = {field.name for field in fields(wf.Training)}
TEACHER = {field.name for field in fields(wf.Teacher)}


def dynamics(network, task, **options):
    """`simulate.dynamics` with the training spelled out."""
    training, rest = split(options, TRAINING)
    return wf.simulate.dynamics(network, task, wf.Training(**training), **rest)


def proportional(network, **options):
    """`simulate.proportional` with teacher and training spelled out."""
    training, rest = split(options, TRAINING)
    teacher, rest = split(rest, TEACHER)
    return wf.simulate.proportional(network, wf.Teacher(**teacher), wf.Training(**training), **rest)


def split(options, names):
    """The ``options`` among ``names``, and the others."""
    return {k: v for k, v in options.items() if k in names}, {k: v for k, v in options.items() if k not in names}
