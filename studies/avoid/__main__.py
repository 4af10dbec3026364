from studies.avoid.study import main
from studies.common import start

start(main)
