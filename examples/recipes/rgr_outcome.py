"""Outcome-GRPO, RGR-GRPO's baseline by the final answer.

`python -m examples.recipes.rgr_outcome MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("rgr-outcome")
