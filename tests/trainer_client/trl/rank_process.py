"""One rank of a training in float64, as a process: `python -m … FOLDER URL SETTINGS`.

The settings are JSON. Writes the parameters it ends with, and what it logged, to a file of its rank.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.trainer_client.trl.training import CRITERIA, PLAIN, RIGHT, SLIP, WRONG, dataset, policy, trainer, weights
from trainer_client.trl import GenerationCallback, TrainingMeasures


class First(GenerationCallback):
    """Logs the place of the rank's first response."""

    def on_scored(self, generation: Any) -> dict[str, float]:
        return {"first": generation.first}


def main(folder: Path, url: str, given: dict[str, Any]) -> None:
    texts = [RIGHT, RIGHT, SLIP, RIGHT, WRONG, SLIP, f"{RIGHT}\n{RIGHT}"[:60], ""]
    model = policy(folder / "policy", torch.float64)
    data = dataset(CRITERIA if given["method"] == "srar" else PLAIN)
    trained = trainer(folder, url, texts=texts, data=data, model=model, num_generations=8, **given)
    trained.add_callback(TrainingMeasures())
    trained.add_callback(First())
    trained.train()
    said = {
        "weights": weights(trained.model),
        "log": trained.state.log_history,
        "device": str(trained.accelerator.state),
    }
    torch.save(said, folder / f"rank{os.environ.get('RANK', '0')}-of-{os.environ.get('WORLD_SIZE', '1')}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
