"""DRO's baseline by ROUGE-L.

`python -m examples.recipes.dro_rouge MODEL DATA URL OUT`; see `examples/recipes/run.py`.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("dro-rouge")
