from studies.common import start
from studies.path_matching.study import main

start(main)
