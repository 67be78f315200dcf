"""Sampling without a trainer: where a response ends, and that samples come from the plain distribution."""

import pytest
import torch

from tests.trainer_client.trl.training import policy, tokenizer
from trainer_client.trl.prefilter import TransformersSampler

pytestmark = pytest.mark.trl


def sampler(tmp_path, **settings):
    model = policy(tmp_path / "policy").eval()
    return TransformersSampler(
        model, tokenizer(), **{"group_size": 3, "max_tokens": 12, "temperature": 1.0} | settings
    ), model


@pytest.mark.parametrize(("declared", "of_tokenizer"), [(list(range(40, 80)), "<eos>"), (45, "b"), (None, "a")])
def test_a_sample_ends_at_the_first_stop_token(tmp_path, declared, of_tokenizer):
    model, words = policy(tmp_path / "policy").eval(), tokenizer()
    model.generation_config.eos_token_id = declared
    words.eos_token = of_tokenizer
    ends = {words.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    torch.manual_seed(1)
    groups = TransformersSampler(model, words, group_size=40, max_tokens=12, temperature=1.0).sample([[5, 6, 7], [5]])
    assert [len(group) for group in groups] == [40, 40]
    said = [ids for group in groups for ids in group]
    assert {ids[-1] for ids in said if len(ids) < 12} <= ends
    assert words.eos_token_id in {ids[-1] for ids in said} or of_tokenizer == "<eos>"
    assert any(ids[-1] not in ends for ids in said)
    assert not any(id_ in ends for ids in said for id_ in ids[:-1])


def test_a_shorter_prompt_beside_a_longer_one_is_answered_as_if_alone(tmp_path):
    likeliest, _ = sampler(tmp_path, temperature=1e-4, group_size=2)
    prompts = [[5, 6, 7, 8, 9], [70, 71]]
    together = likeliest.sample(prompts)
    assert together == [likeliest.sample([ids])[0] for ids in prompts]
    assert together[0] != together[1]


def test_samples_use_the_whole_distribution_whatever_the_model_declares(tmp_path):
    drawn, model = sampler(tmp_path, group_size=400, max_tokens=1)
    model.generation_config.update(top_k=1, top_p=0.1, temperature=0.01, repetition_penalty=5.0)
    torch.manual_seed(1)
    assert len({ids[0] for ids in drawn.sample([[5, 6]])[0]}) > 100
