"""Measures of rubrics and policies, computed from judged responses."""
