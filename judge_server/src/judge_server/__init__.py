"""Adjudge's judge: from groups of responses and a rubric to verdicts, and from verdicts to an answer."""
