from studies.common import start
from studies.label_noise.study import main

start(main)
