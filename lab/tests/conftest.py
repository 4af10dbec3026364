from repeatable import _catalogue_as_it_was, _repeatable  # noqa: F401
