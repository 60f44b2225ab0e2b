"""Module state dicts: what is saved of a converted model, and how it is loaded."""
