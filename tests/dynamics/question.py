"""Questions stated as one set of settings: those of the training and the options of the call."""

from dataclasses import fields

import widefield as wf

TRAINING = {field.name for field in fields(wf.Training)}


def split(**settings):
    """The training, and what is left."""
    training = wf.Training(**{name: value for name, value in settings.items() if name in TRAINING})
    return training, {name: value for name, value in settings.items() if name not in TRAINING}


def predict(network, task, **settings):
    training, options = split(**settings)
    return wf.dynamics(network, task, training, **options)


def experiment(network, task, **settings):
    training, options = split(**settings)
    return wf.simulate.dynamics(network, task, training, **options)


def density(network, task, **settings):
    training, options = split(**settings)
    return wf.neuron_density(network, task, training, **options)
