"""Keep the checkpoint that does best on held-out problems: `make serve`, then `python select_checkpoint.py MODEL`.

Every tenth step the policy is evaluated on problems that it is not trained on. At the end, the checkpoint with the
highest held-out reward is saved to `out/best`.
"""

import sys
from pathlib import Path

from datasets import load_dataset

from trainer_client.trl import RubricGRPOConfig, RubricGRPOTrainer, RubricReward

dataset = load_dataset("json", data_files=str(Path(__file__).with_name("problems.jsonl")), split="train")
parts = dataset.train_test_split(test_size=4, seed=0)

trainer = RubricGRPOTrainer(
    model=sys.argv[1],
    reward_funcs=RubricReward("http://127.0.0.1:8000"),
    args=RubricGRPOConfig(
        "out",
        num_generations=4,
        per_device_train_batch_size=8,
        logging_steps=1,
        max_steps=100,
        eval_strategy="steps",
        eval_steps=10,
        num_generations_eval=4,
        save_strategy="steps",
        save_steps=10,
        save_total_limit=2,
        metric_for_best_model="eval_reward",
        load_best_model_at_end=True,
    ),
    train_dataset=parts["train"],
    eval_dataset=parts["test"],
)
trainer.train()
trainer.save_model("out/best")
print(f"step {trainer.state.best_global_step} has the best held-out reward, {trainer.state.best_metric:.3f}")
