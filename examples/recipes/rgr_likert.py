"""Likert-GRPO, RGR-GRPO's baseline by one rating.

`python -m examples.recipes.rgr_likert MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("rgr-likert")
