"""Rules as text: `parse` reads them, the listing prints the catalogue."""

from .parse import ParseError, parse

__all__ = ["ParseError", "parse"]
