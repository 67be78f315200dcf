"""Links and paths in the documentation exist, and its examples match the repository."""

import re
from pathlib import Path

import pytest

from judge_server.engines import engine_from_url
from rubric_store import read_rubric
from tests.docs.pages import PAGES, ROOT, anchors, blocks, code_spans, links, name
from trainer_client.wire import RewardAnswer, RewardRequest

_FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
_REPOSITORY_PATH = re.compile(rf"(?:{'|'.join(map(re.escape, _FOLDERS))})/[\w./-]*|[A-Z]+\.md|Makefile|[\w-]+\.toml")
_SOURCES = {
    "trainer_client": "trainer_client/src/trainer_client",
    "judge_server": "judge_server/src/judge_server",
    "rubric_store": "rubric_store/src/rubric_store",
    "adjudge_services": "services/src/adjudge_services",
}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_has_a_target(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(found), f"{name(page)} links to {target}; {name(found)} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_repository_path_named_by_a_page_exists(page: Path) -> None:
    for span in code_spans(page):
        if _REPOSITORY_PATH.fullmatch(span) or span.startswith("adjudge_services/"):
            assert _exists(span), f"{name(page)} names {span}, which does not exist"


def _exists(path: str) -> bool:
    """Whether a path exists from the root, or from the source folder that its first part abbreviates.

    `docker/.env` is written by a documented command.
    """
    if path == "docker/.env":
        return True
    package, _, rest = path.partition("/")
    return (ROOT / path).exists() or (package in _SOURCES and (ROOT / _SOURCES[package] / rest).exists())


def test_the_quickstart_of_the_readme_equals_the_file_of_that_name() -> None:
    assert blocks(ROOT / "README.md", "python") == [(ROOT / "examples/quickstart.py").read_text(encoding="utf-8")]


def test_the_examples_of_the_http_reference_are_valid_messages_of_the_contract() -> None:
    request, answer = blocks(ROOT / "docs/reference/http-api.md", "json")
    RewardRequest.model_validate_json(request)
    RewardAnswer.model_validate_json(answer)


def test_the_rubric_files_shown_can_be_read() -> None:
    page = ROOT / "docs/reference/formats.md"
    shown = [text for language in ("json", "text", "yaml") for text in blocks(page, language)]
    assert [len(read_rubric(text).criteria) for text in shown] == [2, 2, 2, 2, 2, 3, 2, 2]


@pytest.mark.parametrize("url", ["llamacpp://m", "vllm:///m", "openai+http://localhost/v1", "scripted://hash"])
def test_every_option_of_an_engine_is_documented(url: str) -> None:
    with pytest.raises(ValueError, match="it takes") as refused:
        engine_from_url(f"{url}?nonsense=1")
    known = str(refused.value).rpartition("it takes ")[2].split(", ")
    assert set(known) <= set(code_spans(ROOT / "docs/reference/settings.md"))
