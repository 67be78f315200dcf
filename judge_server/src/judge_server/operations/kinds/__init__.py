"""The kinds of operation that are worked on in chunks, a file each."""

from judge_server.operations.kinds.evaluate import EvaluateHandler
from judge_server.operations.kinds.generate import GenerateHandler
from judge_server.operations.kinds.score import ScoreHandler
from judge_server.operations.kinds.validate import ValidateHandler

__all__ = ["EvaluateHandler", "GenerateHandler", "ScoreHandler", "ValidateHandler"]
