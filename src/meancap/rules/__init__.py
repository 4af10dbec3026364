"""Guidance rules: the protocol, and one module per family with its parts (`|` chains them) and its recipes.

A frozen dataclass or a recipe in one of these modules is known here, to `parse`, to the catalogue and to the
benchmark without being listed anywhere else.
"""

from ..schedules import Values as Values
from .adaptive import *
from .calibration import Calibration as Calibration
from .calibration import Pilot as Pilot
from .calibration import auto as auto
from .caps import *
from .density_ratio import *
from .direction import *
from .elementwise import *
from .frequency import *
from .grammar import ParseError as ParseError
from .grammar import parse as parse
from .memory import *
from .methods import Entry as Entry
from .methods import builtin_names as _builtin_names
from .methods import catalogue as catalogue
from .methods import register as register
from .negative import *
from .rescaling import *
from .rule import *
from .rule import __all__ as _rule
from .scale import *
from .time import *

_OTHERS = (
    "Calibration", "Entry", "ParseError", "Pilot", "Values", "auto", "by_step", "cap_fraction", "catalogue",
    "parse", "register",
)  # fmt: skip
__all__ = sorted({*_rule, *_OTHERS, *(_builtin_names() & globals().keys())})
