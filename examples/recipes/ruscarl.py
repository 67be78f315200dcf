"""RuscaRL.

`python -m examples.recipes.ruscarl MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("ruscarl")
