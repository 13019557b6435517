"""Tasks to start from: random inputs, a teacher that rotates, and images."""

from widefield.question.tasks.images import cifar10, digits
from widefield.question.tasks.synthetic import gaussian, rotation

__all__ = ["cifar10", "digits", "gaussian", "rotation"]
