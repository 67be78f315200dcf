"""Commands that make rubrics, manage them in the store, and check them."""
