"""Outcome-GRPO, RGR-GRPO's baseline by the final answer.

`python -m examples.recipes.rgr_outcome MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("rgr-outcome")
