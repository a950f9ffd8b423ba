"""Pure tensor functions: no model, no file, no device of their own. Axes: copies, batch, keys, classes."""
