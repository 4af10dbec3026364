"""`python -m meancap_lab` is the command `meancap`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
