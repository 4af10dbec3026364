"""Guidance rules, in four packages: the protocol, the parts that chain with `|`, the methods, and the text.

A class in a module of `parts` and a recipe in a module of `methods` are known here, to `parse`, to the
catalogue and to the benchmark without being listed anywhere else.
"""

from .methods import *
from .methods.registry import Entry as Entry
from .methods.registry import builtin_names as _builtin_names
from .methods.registry import catalogue as catalogue
from .methods.registry import register as register
from .parts import *
from .protocol import *
from .protocol import __all__ as _protocol
from .text import ParseError as ParseError
from .text import parse as parse

_OTHERS = (
    "Entry", "ParseError", "Values", "by_step", "cap_fraction", "catalogue", "parse", "register", "triangle",
)  # fmt: skip
__all__ = sorted({*_protocol, *_OTHERS, *(_builtin_names() & globals().keys())})
