"""Batches in verl's layout for an estimator."""

import math

import numpy as np
import torch
from hypothesis import strategies as st

ALL = {"max_unscored": 1.0}
REWARD = st.none() | st.floats(-1, 2, width=32, allow_subnormal=False)


@st.composite
def batches(draw):
    """Arbitrary rewards, lengths and group ids of a batch, in verl's order."""
    count = draw(st.integers(1, 12))
    rewards = draw(st.lists(REWARD, min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    names = draw(st.lists(st.sampled_from(["u1", "u2", "u3"]), min_size=count, max_size=count))
    return rewards, lengths, names


def laid_out(rewards, lengths, names, width=6, dtype=torch.int64):
    """B x T rewards, each on its last token, the mask, and numpy's object array of uids."""
    scores = torch.zeros(len(rewards), width)
    mask = torch.zeros(len(rewards), width, dtype=dtype)
    for row, (reward, length) in enumerate(zip(rewards, lengths, strict=True)):
        scores[row, length - 1] = math.nan if reward is None else reward
        mask[row, :length] = 1
    return {"token_level_rewards": scores, "response_mask": mask, "index": np.array(names, dtype=object)}


def members(names):
    return [[row for row, own in enumerate(names) if own == name] for name in dict.fromkeys(names)]
