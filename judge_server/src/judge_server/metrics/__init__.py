"""What a judge tells of itself, in Prometheus' format. Knows no HTTP: `judge_server.web.metrics` shows it."""

from judge_server.metrics.judge import JudgeMetrics

__all__ = ["JudgeMetrics"]
