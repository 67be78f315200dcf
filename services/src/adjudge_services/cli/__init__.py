"""The `adjudge` command."""
