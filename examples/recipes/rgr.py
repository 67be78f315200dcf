"""RGR-GRPO.

`python -m examples.recipes.rgr MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("rgr")
