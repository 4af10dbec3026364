"""Experiments as folders: frozen configurations in, files out; each can be stopped and taken up again."""
