"""Logs, traces and metrics. No prompt, response, rationale, criterion or key enters any of them."""
