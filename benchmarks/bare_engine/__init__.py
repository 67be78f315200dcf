"""Compare Adjudge with its bare engine: the same calls through the service, and in a plain loop."""
