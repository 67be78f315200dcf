"""The rubric store's tests."""
