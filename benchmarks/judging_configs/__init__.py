"""Measure how several criteria per call, or reasons before the verdict, affect cost and verdicts."""
