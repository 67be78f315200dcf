"""Compare Adjudge with other tools: the same responses and criteria on the same server, in one run."""
