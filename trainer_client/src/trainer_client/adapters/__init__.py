"""Rubric rewards in other trainers and in evaluation libraries, one module for each.

A module imports its library, so name the module itself: `trainer_client.adapters.inspect_ai`, and so on. All of them
ask the service through `trainer_client.adapters.scorer.RubricScorer`. A response without a reward is left out where the
library can leave it out; everywhere else it raises `NoReward`. No adapter makes a 0 of it.
"""

from trainer_client.adapters.scorer import NoReward, RubricScorer, Scored

__all__ = ["NoReward", "RubricScorer", "Scored"]
