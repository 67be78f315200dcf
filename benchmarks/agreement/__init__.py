"""How far the verdicts of a judge agree with labels, on public data sets that are read where they lie."""
