from studies.common import start
from studies.training.study import main

start(main)
