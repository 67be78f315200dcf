"""Rubric-GRPO, RGR-GRPO's on-policy baseline.

`python -m examples.recipes.rgr_rubric MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("rgr-rubric")
