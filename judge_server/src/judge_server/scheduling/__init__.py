"""The queue in front of an engine: admission, concurrency, single flight, and running the calls."""
