"""Long-running operations: their handlers, and the processes that work on their chunks."""
