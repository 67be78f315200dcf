"""One module per contender, which runs in a separate process in the environment with its packages.

The peers' modules import nothing from Adjudge.
"""
