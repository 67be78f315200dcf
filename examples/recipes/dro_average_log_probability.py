"""DRO's baseline by the average log-probability.

`python -m examples.recipes.dro_average_log_probability MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("dro-average-log-probability")
