"""From a request to its verdicts and rewards."""
