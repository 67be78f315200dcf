"""A group: the verdicts on all responses, side by side, and their advantages."""
