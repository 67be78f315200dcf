"""What a judge tells of itself, in Prometheus' format. Knows no HTTP: `judge_server.web.metrics` shows it."""

from judge_server.metrics.judge import JudgeMetrics
from judge_server.metrics.ledger import LedgerMetrics
from judge_server.metrics.operations import OperationMetrics
from judge_server.metrics.page import metrics_page
from judge_server.metrics.pool import PoolMetrics

__all__ = ["JudgeMetrics", "LedgerMetrics", "OperationMetrics", "PoolMetrics", "metrics_page"]
