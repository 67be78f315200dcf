"""A tiny policy that learns arithmetic on a CPU in minutes, with program-verified rubrics in a running Adjudge."""
