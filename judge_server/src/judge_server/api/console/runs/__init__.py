"""Training runs: the list, and the page of one."""
