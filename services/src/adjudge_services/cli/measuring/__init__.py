"""Commands that measure responses, and show recorded training runs."""
