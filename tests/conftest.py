from repeatable import _catalogue_as_it_was, _repeatable, pytest_terminal_summary  # noqa: F401
