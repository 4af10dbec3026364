from studies.common import start
from studies.inception.study import main

start(main)
