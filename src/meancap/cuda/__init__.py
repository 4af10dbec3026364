"""The hot step in Triton, for CUDA; nothing here is imported before such a device asks for it."""
