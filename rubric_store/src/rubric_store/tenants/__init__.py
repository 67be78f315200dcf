"""Projects, their API keys, limits and usage, and the audit log."""
