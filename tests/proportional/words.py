"""Questions in one line: words that belong to the teacher and to the training, gathered into the two nouns."""

from dataclasses import fields

import widefield as wf
from widefield.theories.proportional.problem import pose

TEACHER = {field.name for field in fields(wf.Teacher)}
TRAINING = {field.name for field in fields(wf.Training)}


def nouns(words):
    """Teacher, training, and the words that are left."""
    teacher = wf.Teacher(**{name: value for name, value in words.items() if name in TEACHER})
    training = wf.Training(**{"rate": 0.05} | {name: value for name, value in words.items() if name in TRAINING})
    return teacher, training, {name: value for name, value in words.items() if name not in TEACHER | TRAINING}


def ask(call, network, **words):
    """A public call, theory or simulation."""
    teacher, training, rest = nouns(words)
    return call(network, teacher, training, **rest)


def posed(network, **words):
    """The problem that `wf.proportional` would march."""
    teacher, training, rest = nouns(words)
    return pose(network, teacher, training, **rest)
