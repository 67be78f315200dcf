"""Projects, their API keys, their limits and what they used, and who changed what."""
