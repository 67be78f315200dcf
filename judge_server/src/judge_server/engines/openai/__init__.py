"""Servers of the OpenAI chat API as engines."""
