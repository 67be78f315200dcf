"""DRO's baseline by ROUGE-L.

`python -m examples.recipes.dro_rouge MODEL DATA URL OUT`; `examples/recipes/run.py` says what these are.
"""

from examples.recipes.run import run

if __name__ == "__main__":
    run("dro-rouge")
