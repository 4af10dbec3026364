"""Published methods, each with its recipe and its facts in one place."""

from .adaptive import *
from .by_density_ratio import *
from .caps import *
from .elsewhere import *
from .frequency import *
from .history import *
from .negative import *
from .nodes import *
from .over_time import *
from .production import *
from .projection import *
from .references import *
from .rescaling import *
