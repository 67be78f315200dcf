"""RaR, SRaR's baseline without steps.

`python -m examples.recipes.rar MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("rar")
