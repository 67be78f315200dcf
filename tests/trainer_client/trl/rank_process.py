"""One rank of several trainings in float64, run in sequence: `python -m … FOLDER URL TRAININGS`.

The trainings are JSON, settings by name; `server` makes TRL generate as with a vLLM server. Writes each training's
final parameters and its log to a file for this rank in a folder with the training's name.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.trainer_client.trl.generating import HalfConstantRollout, ScriptedRollout, with_server
from tests.trainer_client.trl.training import CRITERIA, PLAIN, RIGHT, SLIP, WRONG, dataset, policy, trainer, weights
from trainer_client.trl import GenerationCallback, TrainingMeasures

TEXTS = [RIGHT, RIGHT, SLIP, RIGHT, WRONG, SLIP, f"{RIGHT}\n{RIGHT}"[:60], ""]
FACTUAL = [{**criterion, "kind": "factual" if criterion["id"] == "answer" else "process"} for criterion in PLAIN]
REFERENCE = "Final answer: 14"
REASONED = [f"It is 3+4={n}, doubled.\n{REFERENCE}" for n in range(5)] + [
    "Who knows?\nFinal answer: 15",
    REFERENCE,
    "no",
]
ANSWER = [{"id": "final", "description": "Final.", "verification": {"method": "contains", "all_of": ["Final"]}}]


class FirstIndexCallback(GenerationCallback):
    """Log the index of the rank's first response."""

    def on_scored(self, generation: Any) -> dict[str, float]:
        return {"first": generation.first}


def scene(method: str, refilled: bool) -> dict[str, Any]:
    """The data and the policy's responses for a method."""
    if refilled:
        factual = method == "rgr"
        return {
            "reciting": [RIGHT, SLIP, WRONG, "14", WRONG],
            "data": dataset(FACTUAL if factual else PLAIN, prompts=6),
        }
    match method:
        case "srar":
            return {"texts": TEXTS, "data": dataset(CRITERIA)}
        case "rgr":
            texts = [SLIP, WRONG, SLIP, "14", WRONG, "no", RIGHT, WRONG]  # for the first prompt, the last one is right
            return {"reciting": texts, "data": dataset(FACTUAL)}
        case "dro":
            return {"reciting": REASONED, "data": dataset(ANSWER, reference_answer=[REFERENCE, "14"])}
        case "ruscarl":
            return {"reciting": [RIGHT, SLIP, WRONG, "14", RIGHT], "data": dataset(PLAIN)}
        case _:
            return {"texts": TEXTS, "data": dataset(PLAIN)}


def train(folder: Path, url: str, given: dict[str, Any]) -> None:
    server, own = given.pop("server", False), scene(given["method"], "max_refill_rounds" in given)
    reciting = (HalfConstantRollout if "max_refill_rounds" in given else ScriptedRollout)(*own.pop("reciting", ()))
    model = policy(folder / "policy", torch.float64)
    trained = trainer(folder, url, model=model, num_generations=8, **own, **given)
    model.config.max_position_embeddings = 2048  # room for the refinements and scaffolds of other methods
    if reciting.texts:
        trained.rollout_func = reciting
    if server:
        with_server(trained).reciting = reciting
    trained.add_callback(TrainingMeasures())
    trained.add_callback(FirstIndexCallback())
    trained.train()
    said = {
        "weights": weights(trained.model),
        "log": trained.state.log_history,
        "device": str(trained.accelerator.state),
    }
    torch.save(said, folder / f"rank{os.environ.get('RANK', '0')}-of-{os.environ.get('WORLD_SIZE', '1')}.pt")


def main(folder: Path, url: str, trainings: dict[str, dict[str, Any]]) -> None:
    for name, given in trainings.items():
        train(folder / name, url, given)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
