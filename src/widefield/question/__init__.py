"""The question: networks, tasks, teachers and trainings, checked when they are made."""

from widefield.question import tasks as tasks
