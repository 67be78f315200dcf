"""The handlers of the kinds of operations that run in chunks."""

from judge_server.operations.handlers.generate import GenerateHandler, ValidateHandler
from judge_server.operations.handlers.judging import DiscriminateHandler, EvaluateHandler, ScoreHandler
from judge_server.operations.handlers.reverify import ReverifyHandler

__all__ = [
    "DiscriminateHandler",
    "EvaluateHandler",
    "GenerateHandler",
    "ReverifyHandler",
    "ScoreHandler",
    "ValidateHandler",
]
