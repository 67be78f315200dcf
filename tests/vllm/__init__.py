"""vLLM, for real: `make test-vllm` runs these in .venv-vllm; elsewhere they are skipped, with the reason."""
