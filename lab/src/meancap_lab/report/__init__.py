"""Folders to tables, figures and pages; nothing here imports a model or a sampler."""
