"""`meancap.extras.need` for the extras of this package."""

from functools import partial

from meancap import extras

need = partial(extras.need, package="./lab")
pip_command = partial(extras.pip_command, package="./lab")
