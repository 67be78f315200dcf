"""The handlers of the kinds of operations that run in chunks."""
