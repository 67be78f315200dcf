"""The pages on protocols and on reading responses cover every mode, protocol, engine and program."""

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
from tests.docs.pages import ROOT, table
from tests.services.processes import Service
from trainer_client.final_answer import extract_final_answer
from trainer_client.text.thinking import judged_content
from trainer_client.wire import PROTOCOLS_FOR, Criterion, JudgingProtocol, Response, Verification, VerificationMethod

PAGE = ROOT / "docs/reference/protocols.md"
PROGRAMS = table(ROOT / "docs/reference/reading-responses.md", "Programs")


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def address(shared_service: Service) -> str:
    """A running service whose engine answers by hash."""
    return shared_service.url


def test_every_mode_is_listed_with_its_protocols_and_its_default_first() -> None:
    offered = {codes(row["mode"])[0]: tuple(codes(row["fed by"])) for row in table(PAGE, "Modes and their protocols")}
    assert offered == PROTOCOLS_FOR


def test_every_protocol_is_listed() -> None:
    assert {codes(row["protocol"])[0] for row in table(PAGE, "Protocols")} == set(get_args(JudgingProtocol))


def test_every_engine_is_listed() -> None:
    with pytest.raises(ValueError, match="unknown") as refused:
        engine_from_url("nonsense://")
    offered = {code.partition("://")[0] for row in table(PAGE, "Engines") for code in codes(row["URL"])}
    known = set(re.findall(r"([a-z+]+)://", str(refused.value))) - {"nonsense"}
    assert offered == known


def test_exactly_the_usable_cells_of_the_grid_link_an_example() -> None:
    linked = {}
    for row in table(PAGE, "Examples"):
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
            expected[mode, protocol] = (f"../../examples/judging/{name}.json", own)
    assert linked == expected


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: json.loads(codes(row["verification"])[0])["method"])
def test_a_program_decides_its_example_as_the_page_says(row: dict[str, str]) -> None:
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


@pytest.mark.processes
def test_the_capabilities_of_a_service_are_those_that_the_page_describes(address: str) -> None:
    said = httpx2.get(f"{address}/v1").json()
    assert said["protocols_for"] == {mode: list(protocols) for mode, protocols in PROTOCOLS_FOR.items()}
    assert said["engine"].keys() >= {"logprobs", "token_menus", "json_schema", "prefix_in_flight"}
