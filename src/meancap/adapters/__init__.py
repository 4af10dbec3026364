"""Hosts: each module here turns one host's tensors into a `Prediction` and the answer back, and no more."""
