"""A user's template sets are found by name, enter the fingerprint, and are refused before judging."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from pydantic import ValidationError

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import InvalidRequest
from judge_server.judging.prompts.library import TemplateLibrary, TemplateSet, builtin_sets, builtin_templates
from judge_server.judging.questions import JudgingConfig
from rubric_store import RubricStore
from tests.judge_server import support
from tests.judge_server.support import RecordingScript, request
from trainer_client.wire import JudgingOptions

OURS = builtin_templates()
PAPERS = sorted(builtin_sets())
QUESTION = "Holds this: {{ criterion.description }}"
RUBRIC = {"criteria": [{"id": "a", "description": "7 is prime."}]}


def write(folder: Path, question: str | None = None, holistic: str | None = None) -> Path:
    """Write a template set to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"question.j2": question, "holistic.j2": holistic}.items():
        if text is not None:
            (folder / name).write_text(text, encoding="utf-8")
    return folder


async def test_the_fingerprint_changes_with_the_templates_used_and_not_with_the_name(tmp_path: Path) -> None:
    write(tmp_path / "a", question=QUESTION)
    write(tmp_path / "same", question=QUESTION)
    write(tmp_path / "other", question=QUESTION + "?")
    write(tmp_path / "unused", holistic=OURS["holistic.j2"] + "?")
    judge = await support.judge(templates=TemplateLibrary(tmp_path))
    names = [None, "a", "same", "other", "unused"]
    ours, a, same, other, unused = (
        judge.prepared(JudgingConfig("binary", template=name)).fingerprint for name in names
    )
    assert len({ours, a, other}) == 3
    assert same == a
    assert unused == ours
    assert (
        judge.prepared(JudgingConfig("likert", template="unused")).fingerprint
        != judge.prepared(JudgingConfig("likert")).fingerprint
    )
    await judge.close()


def test_a_valid_set_is_read_once_and_a_refused_one_is_read_again(tmp_path: Path) -> None:
    library = TemplateLibrary(tmp_path)
    write(tmp_path / "a", question="{{ oops }}")
    with pytest.raises(InvalidRequest, match=r"the template set 'a' cannot be used: a/question\.j2:1: "):
        library.find("a")
    write(tmp_path / "a", question=QUESTION)
    assert library.find("a") == TemplateSet({"question.j2": QUESTION})
    write(tmp_path / "a", question=QUESTION + "?")
    assert library.find("a") == TemplateSet({"question.j2": QUESTION})


def test_an_unknown_set_is_refused_with_the_available_ones(tmp_path: Path) -> None:
    library = TemplateLibrary(tmp_path / "sets")
    assert library.names == PAPERS
    gone = "no template set 'x'; it has .*srar; the folder in ADJUDGE_TEMPLATES_DIR does not exist"
    with pytest.raises(InvalidRequest, match=gone):
        library.find("x")
    write(tmp_path / "sets/strict", question=QUESTION)
    write(tmp_path / "sets/brief", question=QUESTION)
    write(tmp_path / "sets/.git")
    write(tmp_path / "sets/Not A Name")
    (tmp_path / "sets/notes").write_text("no folder")
    assert library.names == sorted([*PAPERS, "brief", "strict"])
    with pytest.raises(InvalidRequest, match=r"'x'; it has brief, .*, srar, strict$") as refused:
        library.find("x")
    assert [error.field for error in refused.value.errors] == ["judging.template"]
    with pytest.raises(
        InvalidRequest, match=r"'x'; it has .*; to add sets of your own, start it with ADJUDGE_TEMPLATES_DIR"
    ):
        TemplateLibrary(None).find("x")
    assert TemplateLibrary(None).find(None) == TemplateSet()


@pytest.mark.parametrize("name", ["../outside", "..", ".", "", "a/../../outside", "sets/a", "OUTSIDE", "a\n", "a\0"])
def test_no_name_escapes_the_folder(tmp_path: Path, name: str) -> None:
    write(tmp_path / "outside", question=QUESTION)
    write(tmp_path / "sets/a", question=QUESTION)
    write(tmp_path / "sets/sets/a", question=QUESTION)
    for tried in (name, str(tmp_path / "outside")):
        with pytest.raises(InvalidRequest, match="no template set"):
            TemplateLibrary(tmp_path / "sets").find(tried)
        with pytest.raises(ValidationError):
            JudgingOptions(template=tried)


async def test_a_request_is_judged_with_the_set_it_names(tmp_path: Path, store: RubricStore) -> None:
    write(tmp_path / "mine", question=QUESTION)
    asked = RecordingScript()
    async with client(tmp_path, store, ScriptedEngine(asked)) as http:
        body = request(judging={"template": "mine"}, reward={"mode": "weighted_mean"}) | {"rubric": RUBRIC}
        answer = await http.post("/v1/rewards", json=body)
        assert answer.status_code == 200, answer.text
        assert set(asked.asked) == {"Holds this: 7 is prime."}
        assert (await http.get("/v1")).json()["templates"] == sorted([*PAPERS, "mine"])


@pytest.mark.parametrize(("name", "says"), [("bad", "bad/question.j2:1: it uses 'oops'"), ("gone", "it has bad, ")])
@pytest.mark.parametrize("path", ["/v1/rewards", "/v1/verdicts", "/v1/comparisons"])
async def test_an_unusable_set_gives_a_422_before_anything_is_judged(
    tmp_path: Path, store: RubricStore, path: str, name: str, says: str
) -> None:
    write(tmp_path / "bad", question=QUESTION + "{{ oops }}")
    asked = RecordingScript()
    async with client(tmp_path, store, ScriptedEngine(asked)) as http:
        of = {
            "/v1/rewards": {"groups": request()["groups"], "reward": {"mode": "weighted_mean"}},
            "/v1/verdicts": {"groups": request()["groups"]},
            "/v1/comparisons": {"pairs": [{"id": "p", "prompt": "Is 7 prime?", "a": "Yes.", "b": "No."}]},
        }
        answer = await http.post(path, json={"rubric": RUBRIC, "judging": {"template": name}, **of[path]})
        assert answer.status_code == 422, answer.text
        assert says in answer.json()["detail"]
        assert [error["field"] for error in answer.json()["errors"]] == ["judging.template"]
    assert not asked.asked


@asynccontextmanager
async def client(folder: Path, store: RubricStore, engine: ScriptedEngine) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service with these sets and this engine."""
    judge = await support.judge(engine, templates=TemplateLibrary(folder))
    app = create_app(Service(rubrics=store, judges={"default": judge}))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test") as http:
        yield http
    await judge.close()
