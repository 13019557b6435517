"""``python -m widefield``: the command line."""

from widefield.cli import main

main()
