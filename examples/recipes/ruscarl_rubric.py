"""RuscaRL's baseline without a scaffold.

`python -m examples.recipes.ruscarl_rubric MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("ruscarl-rubric")
