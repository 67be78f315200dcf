"""A tiny policy that learns arithmetic on a CPU in minutes, judged by programs through a live Adjudge."""
