"""Commands that turn verdicts into rewards: of a file, and of a recorded run under other rules."""
