"""Rubrics that a model writes: generators, and runs of them over thousands of inputs."""
