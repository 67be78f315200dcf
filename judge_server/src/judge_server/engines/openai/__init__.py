"""Engines behind servers of the OpenAI chat API."""
