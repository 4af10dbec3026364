from studies.common import start
from studies.wind.study import main

start(main)
