"""Rubric-Grounded RL.

`python -m examples.recipes.grounded MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("grounded")
