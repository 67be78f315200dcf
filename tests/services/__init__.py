"""The processes and the command line, started as users start them."""
