"""Long-running operations behind the `Operations` port: their handlers, and the processes that run their chunks."""
