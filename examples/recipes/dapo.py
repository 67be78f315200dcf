"""DAPO by the final answer, SRaR's baseline without a rubric.

`python -m examples.recipes.dapo MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("dapo")
