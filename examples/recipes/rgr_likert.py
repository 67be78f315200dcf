"""Likert-GRPO, RGR-GRPO's baseline by one rating.

`python -m examples.recipes.rgr_likert MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("rgr-likert")
