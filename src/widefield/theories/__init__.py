"""The theories: equations and their solve, one folder each."""
