"""Rubrics: their versions, editor, import, and whether one tells good from bad."""
