"""The playground: its form, the request that it makes, and the answer."""
