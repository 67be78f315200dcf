"""`docs/judging.md` offers what there is, links an example for each cell, and shows code that runs."""

import json
import re
from dataclasses import replace
from typing import get_args

import httpx2
import pytest

from judge_server.engines import engine_from_url
from judge_server.ports import JudgeResult
from judge_server.verifiers import Check, tool_uses
from judge_server.verifiers.worker import decide
from tests.docs.pages import ROOT, blocks, table
from tests.services.processes import Service
from trainer_client import Client
from trainer_client.text.final_answer import extract_final_answer
from trainer_client.text.thinking import judged_content
from trainer_client.wire import PROTOCOLS_FOR, Criterion, JudgingProtocol, Response, Verification, VerificationMethod

PAGE = ROOT / "docs/judging.md"
ADDRESS = "http://127.0.0.1:8000"
SNIPPETS = blocks(PAGE, "python")
PROGRAMS = table(PAGE, "Criteria that a program decides")


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def address(shared_service: Service) -> str:
    """A running service that answers by hash."""
    return shared_service.url


def test_every_mode_is_offered_with_the_protocols_that_feed_it_its_own_first() -> None:
    offered = {codes(row["mode"])[0]: tuple(codes(row["fed by"])) for row in table(PAGE, "Which mode")}
    assert offered == PROTOCOLS_FOR


def test_every_protocol_is_offered() -> None:
    assert {codes(row["protocol"])[0] for row in table(PAGE, "Which protocol")} == set(get_args(JudgingProtocol))


def test_every_engine_is_offered() -> None:
    with pytest.raises(ValueError, match="unknown") as refused:
        engine_from_url("nonsense://")
    offered = {code.partition("://")[0] for row in table(PAGE, "Which engine") for code in codes(row["URL"])}
    known = set(re.findall(r"([a-z+]+)://", str(refused.value))) - {"nonsense"}
    assert offered == known


def test_each_cell_of_the_grid_that_makes_sense_links_its_example_and_no_other_does() -> None:
    linked = {}
    for row in table(PAGE, "Which go together"):
        (mode,) = codes(row.pop("mode"))
        for column, cell in row.items():
            protocol = column.strip("`")
            if (link := re.fullmatch(r"\[(\*\*)?example(\*\*)?\]\((.+)\)", cell)) is None:
                assert cell == "–"
                continue
            linked[mode, protocol] = (link[3], bool(link[1]))
    expected = {}
    for mode, protocols in PROTOCOLS_FOR.items():
        named = [protocol for protocol in protocols if protocol in get_args(JudgingProtocol)]
        for protocol in named or ("none",):
            name = mode if protocol == "none" else f"{mode}.{protocol}"
            own = not named or protocol == named[0]
            expected[mode, protocol] = (f"../examples/judging/{name}.json", own)
    assert linked == expected


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: json.loads(codes(row["verification"])[0])["method"])
def test_a_program_decides_its_row_as_the_page_says(row: dict[str, str]) -> None:
    (written,) = codes(row["verification"])
    verification = Criterion.model_validate({"id": "c", "description": "d", "verification": json.loads(written)})
    program: Verification | None = verification.verification
    assert program is not None
    reads = {"the final answer": "final_answer", "the response": "response", "the messages": "response"}
    assert getattr(program, "of", None) == reads[row["reads"]]
    for column, score in (("satisfied by", 1.0), ("not by", 0.0)):
        (text,) = codes(row[column])
        check = Check(program, text, extract_final_answer(text), None)
        if row["reads"] == "the messages":
            judged = judged_content(Response.model_validate({"text": json.loads(text)}), "strip")
            uses = tool_uses(judged.messages or (), judged.turns)
            check = replace(check, uses=uses, turns=len(judged.turns))
        assert decide(check) == JudgeResult(score)


def test_every_program_has_a_row() -> None:
    methods = {json.loads(codes(row["verification"])[0])["method"] for row in PROGRAMS}
    assert methods == set(get_args(VerificationMethod)) - {"judge"}


def test_the_commands_send_files_that_are_there() -> None:
    sent = re.findall(r"-d @(\S+)", "".join(blocks(PAGE, "console")))
    assert len(sent) == 3
    assert all((ROOT / path).is_file() for path in sent)


@pytest.mark.processes
def test_the_snippets_run_one_after_another_against_a_service(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for number, code in enumerate(SNIPPETS):
        exec(compile(code.replace(ADDRESS, address), f"docs/judging.md, snippet {number}", "exec"), names)
        assert capsys.readouterr().out, f"snippet {number} shows nothing"
    client = names["client"]
    assert isinstance(client, Client)
    client.close()


@pytest.mark.processes
def test_what_a_service_says_it_can_do_is_what_the_page_speaks_of(address: str) -> None:
    said = httpx2.get(f"{address}/v1").json()
    assert said["protocols_for"] == {mode: list(protocols) for mode, protocols in PROTOCOLS_FOR.items()}
    assert said["engine"].keys() >= {"logprobs", "token_menus", "json_schema", "prefix_in_flight"}
