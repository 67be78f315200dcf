"""Measures of rubrics, judges and policies, computed from judged responses."""

from judge_server.evaluation.separation import CriterionSeparation, LabelledPrompt, Separation, separation

__all__ = ["CriterionSeparation", "LabelledPrompt", "Separation", "separation"]
