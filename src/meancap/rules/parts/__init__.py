"""Parts that chain with `|`: rules that scale, cap, turn, gate or remember, and schedules of their scales."""

from .adaptive import *
from .bands import *
from .cap import *
from .density_ratio import *
from .elementwise import *
from .feedback import *
from .frequency import *
from .gain import *
from .history import *
from .literal import *
from .negative import *
from .phases import *
from .published_schedules import *
from .reference import *
from .renorm import *
from .scale import *
from .shape import *
from .threshold import *
from .values import *
