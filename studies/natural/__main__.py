from studies.common import start
from studies.natural.study import main

start(main)
