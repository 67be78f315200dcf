"""A vLLM whose processes die: the engine reports a fatal error, and its judge exits with the reason."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from judge_server.engines.vllm.engine import VllmEngine
from tests.services.processes import listening
from tests.vllm.conftest import CONTEXT_TOKENS
from trainer_client import Client


async def test_an_engine_is_dead_once_vllm_reports_an_error_but_not_before_loading_or_after_closing() -> None:
    engine, llm = VllmEngine("owner/model"), SimpleNamespace(errored=False)
    assert engine.fatal_error == ""
    engine._answerer = SimpleNamespace(llm=llm)  # type: ignore[assignment]
    assert (engine.fatal_error, await engine.ready()) == ("", True)
    llm.errored = True
    assert "restart this process" in engine.fatal_error
    assert not await engine.ready()
    engine._answerer = None
    assert engine.fatal_error == ""


@pytest.mark.vllm
def test_a_judge_whose_vllm_is_killed_exits_with_the_reason(tiny: Path, small_cache: None, tmp_path: Path) -> None:
    engine = f"vllm://{tiny}?context={CONTEXT_TOKENS}&eager=1"
    with (
        listening("judge", "--port", "0", "--engine", engine, ADJUDGE_DATA_DIR=str(tmp_path)) as judge,
        Client(judge.url) as client,
    ):
        judge.wait_until_ready(client)
        for child in psutil.Process(judge.process.pid).children(recursive=True):
            child.kill()
        assert judge.process.wait(60) == 1
    assert "error: vLLM's processes have died" in "".join(judge.said)
