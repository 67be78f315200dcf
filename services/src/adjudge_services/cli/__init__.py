"""The command line, `adjudge`."""
