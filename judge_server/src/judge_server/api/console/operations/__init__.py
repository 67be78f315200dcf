"""Operations, and the figures of those that evaluate a judge or a rubric."""
