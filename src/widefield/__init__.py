"""widefield: the field theories of wide neural networks as numbers you can trust."""

from importlib.metadata import version as _version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = _version("widefield")
