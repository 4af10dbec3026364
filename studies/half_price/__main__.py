from studies.common import start
from studies.half_price.study import main

start(main)
