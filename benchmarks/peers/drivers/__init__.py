"""One module for each contender, run as a process of its own in the environment that has its packages.

Those of the peers import nothing of Adjudge.
"""
