"""The processes and the command line, as their users start them."""
