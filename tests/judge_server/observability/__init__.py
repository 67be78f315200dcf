"""What is logged and traced, and what never is."""
