"""Rubrics in the store: names, immutable versions, and what is known about them."""
