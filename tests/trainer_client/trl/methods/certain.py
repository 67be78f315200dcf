"""The small policy's certainty of a reference answer, one plain forward pass per reasoning."""

import torch

from tests.trainer_client.trl.training import policy, tokenizer


def certainties(tmp_path, prompt, reasonings, reference, words=None):
    """Probability of each token of the reference: one row per reasoning."""
    words = words or tokenizer()
    model = policy(tmp_path / "policy", words=words).eval()
    rows, answer = [], words(reference)["input_ids"]
    for reasoning in reasonings:
        before = words(prompt)["input_ids"] + words(reasoning)["input_ids"]
        logits = model(input_ids=torch.tensor([before + answer])).logits[0, len(before) - 1 : -1]
        rows.append(logits.softmax(-1).gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1).tolist())
    return rows
