"""Sphinx settings. The build reads nothing from the network."""

from importlib.metadata import version as _version

project = "widefield"
author = "The widefield authors"
copyright = author
release = version = _version("widefield")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_typehints = "none"  # shapes and types stand in the source; a signature should fit a line
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"widefield {release}"
