"""The guidance benchmark: rules where the truth is known, on many small problems of known kinds."""
