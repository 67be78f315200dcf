"""The handlers of the kinds of operations that run in chunks."""

from judge_server.operations.handlers.generate import GenerateHandler, ValidateHandler
from judge_server.operations.handlers.judging import DiscriminateHandler, EvaluateHandler, ScoreHandler

__all__ = ["DiscriminateHandler", "EvaluateHandler", "GenerateHandler", "ScoreHandler", "ValidateHandler"]
