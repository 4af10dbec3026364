"""Adapters: each module converts one host's tensors into a `Prediction`, and the guided result back."""
