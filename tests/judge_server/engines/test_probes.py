"""Files with a model's lower layers, and judges that answer by a probe."""

import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge_services.cli.operating.doctor import diagnose
from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.engines.llamacpp.states import HiddenStates
from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import EngineStartError, EngineUnavailable, InvalidRequest
from judge_server.evaluation.fitting.probes import normalised
from judge_server.generation.writer import Writer
from judge_server.judging.questions import JudgingConfig
from judge_server.models import ModelError, NotAModel, fetch
from judge_server.models.probes import PROBE_KEY, LayeredModel, read_about
from judge_server.ports import CallFailure, EngineIdentity
from tests.judge_server import support
from tests.judge_server.engines.fixtures import CONTEXT_TOKENS, answers, asked
from tests.judge_server.engines.probe_files import ABOUT, check_answers, written_probe

MODEL = "smollm2-135m"
LAYERS = 12


def header(**texts: str) -> bytes:
    """The start of a GGUF file with these text keys, after one number and before a list."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    keys = [text("version") + struct.pack("<If", 6, 1.5)]
    keys += [text(name.replace("_", ".")) + struct.pack("<I", 8) + text(value) for name, value in texts.items()]
    keys += [text("tokens") + struct.pack("<IIQ", 9, 8, 0)]
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys)) + b"".join(keys)


def test_a_file_says_what_a_probe_was_fitted_on_and_others_say_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(general_name="m", adjudge_probe='{"labels": 16}'))
    assert read_about(file) == {"labels": 16}
    file.write_bytes(header(general_name="m"))
    assert read_about(file) is None


WHOLE = header(general_name="m", adjudge_probe='{"labels": 16}')


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=9), st.booleans())
def test_a_damaged_file_is_refused_or_says_nothing(place: int, wrong: bytes, cut: bool) -> None:
    with NamedTemporaryFile(suffix=".gguf") as file:
        file.write(WHOLE[:place] + wrong + (b"" if cut else WHOLE[place + 1 :]))
        file.flush()
        with suppress(NotAModel):
            assert isinstance(read_about(Path(file.name)), dict | None)


def test_a_file_that_does_not_exist_or_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAModel):
        read_about(tmp_path / "absent.gguf")
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ModelError):
        LayeredModel(tmp_path / "text.gguf")


class ProbeEngine(ScriptedEngine):
    """A scripted engine that answers one question only, as a probe does."""

    asks = ""

    async def start(self) -> EngineIdentity:
        """The identity with the question."""
        return replace(await super().start(), asks=self.asks)


async def test_a_probe_answers_only_the_question_that_it_was_fitted_to() -> None:
    engine = ProbeEngine()
    engine.asks = (await support.judge()).prepared(JudgingConfig("binary")).wording
    judge = await support.judge(engine)
    assert judge.prepared(JudgingConfig("binary")).wording == engine.asks
    others = [
        JudgingConfig("binary", template="rgr"),
        JudgingConfig("binary", rationale=True),
        JudgingConfig("binary", per_call=4),
        JudgingConfig("binary", contextual=True),
        JudgingConfig("binary", think_tokens=64),
        JudgingConfig("stepwise"),
        JudgingConfig("graded"),
        JudgingConfig("checklist", "all"),
    ]
    for other in others:
        with pytest.raises(InvalidRequest, match="is a probe: it answers one question"):
            judge.prepared(other)


async def test_a_probe_writes_no_rubrics() -> None:
    engine = ProbeEngine()
    engine.asks = "sha256:question"
    with pytest.raises(EngineStartError, match="writes nothing"):
        Writer(engine, await engine.start())


async def test_the_doctor_asks_a_probe_nothing_that_it_cannot_answer() -> None:
    engine = ProbeEngine(lambda batch, call: CallFailure("engine", "asked"))
    engine.asks = "sha256:question"
    found = await diagnose(engine, "mine", has_key=False, min_choice_mass=0.5)
    assert found.can_judge
    assert "is a probe" in found.summary


@pytest.fixture(scope="module")
def model() -> LayeredModel:
    """A small real model."""
    return LayeredModel(fetch(MODEL))


TEXTS = ("7 is prime.\n", "8 is prime.\n", "The sea is blue, and so is the sky above it.\n", "Bonjour à tous.\n")
QUESTIONS = ("Is it right?", "Does it name a colour?")


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_a_real_model_answers_by_a_probe_and_reuses_its_prefix(tmp_path: Path) -> None:
    batches = [asked(*QUESTIONS, shared=12 * text) for text in TEXTS]
    file, odds, states = await written_probe(MODEL, LAYERS, batches, tmp_path, context_tokens=CONTEXT_TOKENS)
    assert np.allclose(states, normalised(states), rtol=1e-3)
    assert odds.std() > 1
    engine = LlamaCppEngine(str(file), context_tokens=CONTEXT_TOKENS, threads=1)
    replies = await check_answers(engine, batches, odds, apart=0.25)
    assert [reply.tokens_reused > 60 for reply in replies] == [False, True] * len(TEXTS)


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_a_prompt_longer_than_the_context_has_no_states(model: LayeredModel, tmp_path: Path) -> None:
    model.write_states(tmp_path / "states.gguf", 2)
    reader = HiddenStates(context_tokens=64, threads=1)
    await reader.start(tmp_path / "states.gguf")
    try:
        with pytest.raises(EngineUnavailable, match="no states"):
            await reader.of([1] * 1000)
    finally:
        await reader.close()


@pytest.mark.model
def test_a_probe_of_a_probe_keeps_nothing_of_the_first(model: LayeredModel, tmp_path: Path) -> None:
    ones = np.ones(model.hidden)
    model.write_probe(tmp_path / "first.gguf", LAYERS, ones, ones, (1, 2), ABOUT)
    again = LayeredModel(tmp_path / "first.gguf")
    assert again.layers == LAYERS
    again.write_states(tmp_path / "second.gguf", 3)
    assert read_about(tmp_path / "second.gguf") is None
    assert PROBE_KEY.encode() not in (tmp_path / "second.gguf").read_bytes()[:4096]


@pytest.mark.model
@pytest.mark.asyncio(loop_scope="session")
async def test_a_probe_says_nothing_about_another_answer(model: LayeredModel, tmp_path: Path) -> None:
    ones = np.ones(model.hidden)
    model.write_probe(tmp_path / "probe.gguf", LAYERS, ones, ones, (1, 2), ABOUT)
    engine = LlamaCppEngine(str(tmp_path / "probe.gguf"), context_tokens=CONTEXT_TOKENS, threads=1)
    await engine.start()
    try:
        (reply,) = await answers(engine, asked("Is it?"))
    finally:
        await engine.close()
    assert not isinstance(reply, CallFailure)
    assert reply.masses == (0.0, 0.0)
