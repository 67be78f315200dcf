"""One rank of a training with an evolving rubric: `python -m … FOLDER URL RUBRIC`. Writes the judged versions."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.trainer_client.trl.training import dataset, trainer
from trainer_client.trl import EvolvingRubrics, GenerationCallback, RubricReward


class RubricVersionCallback(GenerationCallback):
    """Record the rubric version that each batch was judged by."""

    def __init__(self, rubric: str) -> None:
        self.rubric = rubric
        self.judged: list[str] = []

    def on_scored(self, generation: Any) -> dict[str, float]:
        self.judged.append(generation.reward.pinned(self.rubric))
        return {}


def main(folder: Path, url: str, rubric: str) -> None:
    callback, watched = (
        EvolvingRubrics(url, every_n_steps=2, parameters={"validity": False}),
        RubricVersionCallback(rubric),
    )
    data = dataset(prompts=1, rubric=[rubric])
    texts = ["One.", "Two, or three.", "Four?", "Five and six."]
    reward = RubricReward(url, mode="graded_mean")
    given = {"method": "rubric", "per_device_train_batch_size": 2, "max_steps": 3}
    trained = trainer(folder, url, data=data, reward=reward, texts=texts, **given)
    trained.add_callback(watched)
    trained.add_callback(callback)
    trained.train()
    told = {"judged": watched.judged, "kept": callback.state()}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
