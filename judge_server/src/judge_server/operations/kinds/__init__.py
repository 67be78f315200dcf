"""The kinds of operation that are worked on in chunks, a file each."""

from judge_server.operations.kinds.evaluate import EvaluateKind
from judge_server.operations.kinds.generate import GenerateKind
from judge_server.operations.kinds.score import ScoreKind
from judge_server.operations.kinds.validate import ValidateKind

__all__ = ["EvaluateKind", "GenerateKind", "ScoreKind", "ValidateKind"]
