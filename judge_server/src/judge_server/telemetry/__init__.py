"""What a process says about its work as it goes: log lines and spans, with the ids of what they belong to.

No prompt, response, rationale, criterion or key enters either. Metrics are counted in `judge_server.metrics`.
"""
