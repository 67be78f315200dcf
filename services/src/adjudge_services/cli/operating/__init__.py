"""Commands that run processes and look after them, their database and their users."""
