"""The judge server, from fencing to HTTP."""
