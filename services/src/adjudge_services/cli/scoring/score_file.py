"""Read groups from a JSONL file and score them through a client, in order.

A line that cannot be read or scored affects only itself. The options that several commands share are defined here:
which service to ask, and with how much load.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from pydantic import ValidationError

from adjudge_services.settings import Settings
from adjudge_services.wiring import build_app, prepare_store
from rubric_store import FormatError, read_rubric
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.errors import ConnectionFailed
from trainer_client.wire import Group, GroupRewards, RewardAnswer, Usage
from trainer_client.wire.problems import field_errors


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be read as a group, and the reason."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group and its line number."""

    number: int
    group: Group


@dataclass(frozen=True, slots=True)
class PairLine(GroupLine):
    """A group whose first `good` responses are known to be good, the others bad."""

    good: int


@dataclass(frozen=True, slots=True)
class MeasuredLine(GroupLine):
    """A group, and for each response its mean log-likelihoods per token in nats: trained policy, earlier policy."""

    likelihoods: tuple[tuple[float, float], ...] | None


Line = TypeVar("Line")


def read_groups(file: Path) -> Iterator[GroupLine | BadLine]:
    """Read the group of each line, in order, skipping blank lines.

    A line is a group of the API (`prompt`, `responses`, …). Its `id` defaults to `line-N`, and its `rubric` may also be
    the text of a rubric in any format that `adjudge rubrics publish` reads.
    """
    return _read(file, lambda number, row: GroupLine(number, _group(number, row)))


def read_pairs(file: Path) -> Iterator[PairLine | BadLine]:
    """Read lines with `good` and `bad` instead of `responses`: each a list of responses or a single text."""
    return _read(file, _pair_line)


def read_measured(file: Path) -> Iterator[MeasuredLine | BadLine]:
    """Like `read_groups`; a line may also have `logprobs` and `reference_logprobs`, with one number per response."""
    return _read(file, _measured_line)


def _read(file: Path, make: Callable[[int, dict[str, Any]], Line]) -> Iterator[Line | BadLine]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if isinstance(row, dict):
                    yield make(number, row)
                else:
                    yield BadLine(number, "not a group; write a JSON object with a prompt and responses")
            except ValidationError as error:
                first = field_errors(error.errors())[0]
                yield BadLine(number, f"{first.field}: {first.message}")
            except FormatError as error:
                yield BadLine(number, f"rubric: {error}")
            except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
                yield BadLine(number, f"not JSON: {error}")
            except ValueError as error:
                yield BadLine(number, str(error))


def _group(number: int, row: dict[str, Any]) -> Group:
    row = {"id": f"line-{number}"} | row
    rubric = row.get("rubric")
    if (isinstance(rubric, str) and "\n" in rubric) or isinstance(rubric, list):
        row["rubric"] = read_rubric(rubric if isinstance(rubric, str) else json.dumps(rubric))
    return Group.model_validate(row)


def _measured_line(number: int, row: dict[str, Any]) -> MeasuredLine:
    names = ("logprobs", "reference_logprobs")
    given = [row.pop(name, None) for name in names]
    group = _group(number, row)
    if given == [None, None]:
        return MeasuredLine(number, group, None)
    for name, values in zip(names, given, strict=True):
        if not isinstance(values, list) or len(values) != len(group.responses) or not all(map(_is_logprob, values)):
            raise ValueError(
                f"{name}: expected a list of {len(group.responses)} mean log-likelihoods per token, 0 or less, one for "
                f"each response; give both of {' and '.join(names)}, or neither"
            )
    return MeasuredLine(number, group, tuple(zip(*given, strict=True)))


def _is_logprob(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value <= 0


def _pair_line(number: int, row: dict[str, Any]) -> PairLine:
    if "responses" in row:
        raise ValueError("responses: give them as good and bad instead")
    sides = []
    for side in ("good", "bad"):
        responses = row.pop(side, None)
        responses = [responses] if isinstance(responses, str | dict) else responses
        if not isinstance(responses, list) or not responses:
            raise ValueError(f"{side}: expected a response known to be {side}, or a list of them")
        sides.append(responses)
    good, bad = sides
    return PairLine(number, _group(number, row | {"responses": good + bad}), len(good))


def read_rubric_argument(text: str) -> Any:
    """Resolve `--rubric`: the rubric in a file of that name, else a reference into the store.

    Raises:
        FormatError: the file does not contain a rubric.
        ValueError: a file is meant, by its ending, and does not exist.
    """
    path = Path(text)
    if path.is_file():
        return read_rubric(path.read_text(encoding="utf-8"))
    if path.suffix in _FILE_SUFFIXES:
        raise ValueError(f"--rubric: the file {text} does not exist; give a file, or a reference such as name@3")
    return text


_FILE_SUFFIXES = (".json", ".jsonl", ".yaml", ".yml", ".md", ".txt")
"""Endings by which a file that does not exist is told from a reference."""


def one_response(group: Group, index: int) -> Mapping[str, Any]:
    """The group with only one of its responses, so that progress is shown response by response."""
    return group.model_copy(update={"responses": (group.responses[index],)}).model_dump(exclude_none=True)


@dataclass(slots=True)
class ScoredFile:
    """The result of a file: its groups in order, the lines that could not be scored and why, and the usage.

    `unreachable` is the error of the first connection that failed. Nothing was asked after it.
    """

    groups: list[GroupRewards] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    judge: str = ""
    unreachable: ConnectionFailed | None = None


@asynccontextmanager
async def open_client(url: str | None, settings: Settings, run: str | None = None) -> AsyncIterator[AsyncClient]:
    """Open a client of the service at `url`, or start a service in this process and load its model.

    The ledger records the client's requests under `run`.
    """
    if url is not None:
        async with AsyncClient(url, run) as client:
            yield client
        return
    await prepare_store(settings)
    local_settings = settings.model_copy(
        update={"host": "127.0.0.1", "keys": "loopback"}
    )  # nothing outside this process can reach it
    app = build_app(local_settings, wait_for_judge=True)
    inner = AsyncClient("http://localhost", run, api_key="", transport=httpx2.ASGITransport(app))
    async with app.router.lifespan_context(app), inner as client:
        yield client


async def score_groups(
    client: AsyncClient,
    lines: Sequence[GroupLine],
    options: dict[str, Any],
    *,
    concurrency: int,
    advance: Callable[[], None],
) -> ScoredFile:
    """Score every response of every line; `advance` is called after each response.

    If the service cannot be reached, the lines that were not scored before are refused without being sent.
    """
    slots = asyncio.Semaphore(concurrency)
    totals: Counter[str] = Counter()
    scored = ScoredFile()

    async def score_one(line: GroupLine, index: int) -> RewardAnswer | AdjudgeError:
        async with slots:
            if scored.unreachable is not None:
                return scored.unreachable
            try:
                return await client.rewards(groups=[one_response(line.group, index)], **options)
            except ConnectionFailed as error:
                scored.unreachable = scored.unreachable or error
                return scored.unreachable
            except AdjudgeError as error:
                return error
            finally:
                advance()

    work = [[score_one(line, i) for i in range(len(line.group.responses))] for line in lines]
    answers = iter(await asyncio.gather(*(coroutine for group in work for coroutine in group)))
    for line in lines:
        parts = [next(answers) for _ in line.group.responses]
        errors = [part for part in parts if isinstance(part, AdjudgeError)]
        if errors:
            scored.refused[line.number] = str(errors[0])
            continue
        rewards = [part for part in parts if isinstance(part, RewardAnswer)]
        responses = tuple(part.groups[0].responses[0] for part in rewards)
        scored.groups.append(rewards[0].groups[0].model_copy(update={"responses": responses}))
        if (judge := rewards[0].judge) is not None:
            scored.judge = f"{judge.model}, {judge.fingerprint[:19]}…"
        for part in rewards:
            totals.update(part.usage.model_dump())
    scored.usage = Usage(**totals)
    return scored
