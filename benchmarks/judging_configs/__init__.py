"""What it costs and what it does to the verdicts to ask several criteria in a call, or for reasons first."""
