"""The monitors of runs, measured: false alarms in healthy runs, and the time to read a long run."""
