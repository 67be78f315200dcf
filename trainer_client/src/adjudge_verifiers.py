"""Adjudge's judge under an id that verifiers can import: `taskset.task.judges = [{ id = "adjudge-verifiers" }]`.

The id of a plugin is the name of its module, and cannot have dots.
"""

from trainer_client.adapters.verifiers import AdjudgeJudge, AdjudgeJudgeConfig

__all__ = ["AdjudgeJudge", "AdjudgeJudgeConfig"]
