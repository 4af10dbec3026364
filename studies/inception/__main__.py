from studies.common import start

from .study import main

start(main)
