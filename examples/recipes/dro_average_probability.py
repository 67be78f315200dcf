"""DRO's baseline by the average probability.

`python -m examples.recipes.dro_average_probability MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("dro-average-probability")
