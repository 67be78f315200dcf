"""SRaR.

`python -m examples.recipes.srar MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("srar")
