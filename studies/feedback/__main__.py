from studies.common import start
from studies.feedback.study import main

start(main)
