"""DAPO by the final answer, SRaR's baseline without a rubric.

`python -m examples.recipes.dapo MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("dapo")
