"""Tests with a real vLLM: `make test-vllm` runs them in .venv-vllm; elsewhere they are skipped, with the reason."""
