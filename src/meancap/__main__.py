"""`python -m meancap` runs the command `meancap`, which another package of this repository installs."""

import sys
from importlib.metadata import entry_points


def main() -> int:
    for command in entry_points(group="console_scripts", name="meancap"):
        return int(command.load()())
    print('the command needs meancap-lab; run pip install "meancap[lab]"', file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
