"""Whether a rubric, or a judge, is any good: measurements on judged responses whose worth is known."""

from judge_server.evaluation.separation import CriterionSeparation, LabelledPrompt, Separation, separation

__all__ = ["CriterionSeparation", "LabelledPrompt", "Separation", "separation"]
