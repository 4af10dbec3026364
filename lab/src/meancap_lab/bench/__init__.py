"""The guidance benchmark: rules on many small problems whose exact distribution is known."""
