"""The explorer: a page on this machine that shows what guidance does; `meancap explore` opens it."""
