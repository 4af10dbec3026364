"""Parts that chain with `|`: the scale, and the caps."""
