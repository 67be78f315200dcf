"""SRaR.

`python -m examples.recipes.srar MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("srar")
