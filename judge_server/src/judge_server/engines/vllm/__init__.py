"""vLLM as an engine in this process."""
