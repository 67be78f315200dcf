"""Small policies that train in seconds, and scripted responses."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from trainer_client.trl import RubricReward

if TYPE_CHECKING:
    from trainer_client.trl import RubricGRPOConfig, RubricGRPOTrainer

RIGHT = "### Step 1: 3+4=7\n### Step 2: 7*2=14\n\\boxed{14}"
SLIP = "### Step 1: 3+4=7\n### Step 2: 7*2=15\n\\boxed{15}"
WRONG = "### Step 1: 3+4=8\n### Step 2: 8*2=16\n\\boxed{16}"
BARE = "It comes to 14 or to 15 then"

CRITERIA = [
    {
        "id": "sum",
        "kind": "suggest",
        "description": "The sum is 7.",
        "verification": {"method": "contains", "all_of": ["3+4=7"], "step": 1},
    },
    {
        "id": "product",
        "kind": "suggest",
        "description": "The product is 14.",
        "verification": {"method": "contains", "all_of": ["7*2=14"], "step": 2},
    },
    {
        "id": "slip",
        "kind": "pitfall",
        "description": "The product is 15.",
        "verification": {"method": "contains", "all_of": ["=15"], "step": 2},
    },
    {"id": "answer", "kind": "answer", "description": "It is 14.", "verification": {"method": "exact"}},
]
PLAIN = [{key: value for key, value in c.items() if key != "kind"} for c in CRITERIA if c["id"] != "slip"]


def tokenizer(*merged: tuple[str, str]) -> PreTrainedTokenizerFast:
    """One token per byte, and one for each of these pairs of letters."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merged)]
    made = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, list(merged)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def policy(
    folder: Path, dtype: torch.dtype = torch.float32, words: PreTrainedTokenizerFast | None = None
) -> LlamaForCausalLM:
    """A reproducible model of about ten thousand parameters, loaded from a folder as a reference model is."""
    words = words or tokenizer()
    if not (folder / "config.json").exists():
        set_seed(7)
        config = LlamaConfig(
            vocab_size=len(words),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=256,
            bos_token_id=None,
            eos_token_id=words.eos_token_id,
            pad_token_id=words.pad_token_id,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype)


def dataset(criteria: Sequence[dict[str, Any]] = CRITERIA, prompts: int = 2, **columns: list[Any]) -> Dataset:
    """Prompts that share a rubric."""
    rows = {
        "prompt": [f"({n}+3)+4)*2=?\n" for n in range(prompts)],
        "rubric": [{"criteria": list(criteria)}] * prompts,
        "ground_truth": ["14"] * prompts,
    }
    return Dataset.from_dict(rows | columns)


def saying(*texts: str, ended: bool = True) -> Callable[[list[Any], Any], dict[str, Any]]:
    """A rollout function: the n-th response of a generation batch, counted over all ranks, is the n-th text."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        words = trainer.processing_class
        first = trainer.accelerator.process_index * len(prompts)
        said = [texts[(first + row) % len(texts)] for row in range(len(prompts))]
        # TRL refuses a response without tokens, and generators give none
        ids = [words(text)["input_ids"] + [words.eos_token_id] * (ended or not text) for text in said]
        return {
            "prompt_ids": [words(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(row) for row in ids],
        }

    return rollout


def one_step(folder: Path) -> dict[str, Any]:
    """Settings of any TRL for one step on a CPU, with two groups of four responses."""
    return {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "max_steps": 1,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
    }


def settings(folder: Path, **given: Any) -> "RubricGRPOConfig":
    """Settings for a CPU: SGD at a rate of 1, without clipping, so that a step is its gradient."""
    from trainer_client.trl import RubricGRPOConfig

    return RubricGRPOConfig(
        **{
            **one_step(folder),
            "max_completion_length": 64,
            "optim": "sgd",
            "learning_rate": 1.0,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "shuffle_dataset": False,
            "gradient_checkpointing": False,
            "seed": 3,
        }
        | given
    )


def trainer(
    folder: Path,
    url: str,
    *,
    texts: Sequence[str] | None = None,
    data: Dataset | None = None,
    reward: RubricReward | None = None,
    model: LlamaForCausalLM | None = None,
    rewards: Sequence[Any] = (),
    functions: Sequence[Any] | None = None,
    ended: bool = True,
    **given: Any,
) -> "RubricGRPOTrainer":
    """A trainer against a service; `texts` scripts its policy."""
    from trainer_client.trl import RubricGRPOTrainer

    return RubricGRPOTrainer(
        model or policy(folder / "policy"),
        [reward or RubricReward(url, preflight=False), *rewards] if functions is None else list(functions),
        settings(folder, **given),
        train_dataset=data or dataset(),
        processing_class=tokenizer(),
        rollout_func=saying(*texts, ended=ended) if texts else None,
    )


def plain_trainer(
    folder: Path, reward: Any, *texts: str, data: Dataset | None = None, kind: str = "GRPO", **given: Any
) -> Any:
    """A trainer of TRL's own, `GRPO` or `RLOO`. The texts script its policy; `RLOO` generates its own."""
    import trl

    fixed = {**one_step(folder), "max_completion_length": 64, "shuffle_dataset": False}
    return getattr(trl, f"{kind}Trainer")(
        policy(folder / "policy"),
        reward,
        getattr(trl, f"{kind}Config")(**(fixed | given)),
        train_dataset=data or dataset().remove_columns("rubric"),
        processing_class=tokenizer(),
        **({"rollout_func": saying(*texts)} if kind == "GRPO" else {}),
    )


def text_trainer(ours: bool, folder: Path, reward: RubricReward, **given: Any) -> Any:
    """Our trainer or TRL's, whose policy says numbers, which are its rewards."""
    given = {"max_steps": 3, "save_strategy": "steps", "save_steps": 100, **given}
    if ours:
        return trainer(folder, "", reward=reward, texts=("0.25", "0.5"), data=dataset(PLAIN), **given)
    return plain_trainer(folder, reward, "0.25", "0.5", data=dataset(PLAIN), **given)


def weights(model: LlamaForCausalLM) -> torch.Tensor:
    """All parameters in a row."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
