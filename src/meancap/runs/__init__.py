"""Experiments as folders: frozen configurations in, files out; any of them can be stopped and taken up again."""
