"""Logs, traces and metrics. None of them contains prompts, responses, rationales, criteria or keys."""
