"""Generate rubrics with a model: the generators, and resumable runs of one over thousands of inputs."""
