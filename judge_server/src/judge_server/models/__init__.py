"""Judge model files: the catalogue, the local cache, and downloads that are checked and can be resumed.

A model is one GGUF file. This package downloads, checks and locates it but does not load it; it depends neither on
engines nor on the CLI. `downloads.fetch` resolves any model reference, from an engine URL or a user, to a path.
"""
