"""RuscaRL's baseline without a scaffold.

`python -m examples.recipes.ruscarl_rubric MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("ruscarl-rubric")
