"""Small functions that are right, each with examples and a way to draw more calls; `breakage` breaks them."""
