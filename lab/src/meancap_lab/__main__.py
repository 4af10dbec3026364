"""The command `meancap`, also as `python -m meancap_lab`."""

import sys


def main() -> int:
    """Runs the command; Ctrl-C while torch is imported, most of its start, prints one line."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        print("meancap: stopped", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
