"""DRO's baseline by the average probability.

`python -m examples.recipes.dro_average_probability MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("dro-average-probability")
