"""Read groups from a file and score them through a client, in order.

A line that cannot be read or scored affects only itself. However long the file is, only the lines in progress are in
memory, unless the caller keeps them.
"""

import asyncio
import json
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from adjudge_services.cli.options import UsageError
from adjudge_services.cli.output import exit_with_error, file_name, warn
from adjudge_services.cli.row_output import ColumnType, RowOutput
from judge_server.evaluation.row_files import RowFile
from rubric_store import FormatError
from rubric_store.formats import FormatProblem, RubricDocument, fold_problems, read_document
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.errors import ConnectionFailed
from trainer_client.rows.tables import GROUP_FIELDS, result_fields
from trainer_client.wire import Group, GroupRewards, RewardAnswer, Usage, needs_whole_groups
from trainer_client.wire.problems import field_errors

Line = TypeVar("Line")
_LIKELIHOODS = ("logprobs", "reference_logprobs")

_FILE_SUFFIXES = (".json", ".jsonl", ".yaml", ".yml", ".md", ".txt")
"""Endings by which a file that does not exist is told from a reference."""

_REASONS_KEPT = 1_000
"""Refused lines whose reasons are printed; a file of a million bad lines has one reason, mostly."""


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


def read_groups(rows: Path | RowFile) -> Iterator[GroupLine | BadLine]:
    """Read the group of each line, in order, skipping blank lines; warn of columns that were not read.

    A line has the fields of a group (`prompt`, `responses`, …). Its `id` defaults to `line-N`, and its `rubric` may be
    in any format that `adjudge rubrics publish` reads.
    """
    return _read(
        rows if isinstance(rows, RowFile) else RowFile(str(rows)),
        lambda number, row: GroupLine(number, _group(number, row)),
    )


def read_pairs(file: Path, limit: int | None = None) -> Iterator[PairLine | BadLine]:
    """Read lines with `good` and `bad` instead of `responses`: each a list of responses or a single text."""
    return _read(RowFile(str(file), limit, fields=(*GROUP_FIELDS, "good", "bad")), _pair_line)


def read_measured(file: Path, limit: int | None = None) -> Iterator[MeasuredLine | BadLine]:
    """Like `read_groups`; a line may also have `logprobs` and `reference_logprobs`, with one number per response."""
    return _read(RowFile(str(file), limit, fields=(*GROUP_FIELDS, *_LIKELIHOODS)), _measured_line)


def split_lines(lines: Iterable[Line | BadLine]) -> tuple[list[Line], dict[int, str]]:
    """Return the lines that could be read, and the reasons of the others by line number."""
    read: list[Line] = []
    refused: dict[int, str] = {}
    for line in lines:
        if isinstance(line, BadLine):
            refused[line.number] = line.reason
        else:
            read.append(line)
    return read, refused


def _read(rows: RowFile, make: Callable[[int, dict[str, Any]], Line]) -> Iterator[Line | BadLine]:
    changes: list[FormatProblem] = []
    for number, row in rows:
        if isinstance(row, ValueError):
            yield BadLine(number, str(row))
            continue
        try:
            rubric = _document_of(row)
            if rubric is not None:
                row["rubric"] = rubric.content
                changes += [replace(one, line=number) for one in rubric.changes[: _REASONS_KEPT - len(changes)]]
            yield make(number, row)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            hint = rows.hint(first.field)
            yield BadLine(number, f"{first.field}: {first.message}" + (f"; {hint}" if hint else ""))
        except FormatError as error:
            yield BadLine(number, f"rubric: {error}")
        except ValueError as error:
            yield BadLine(number, str(error))
    for change in fold_problems(changes):
        warn(f"{file_name(Path(rows.name))}: rubric changed: {change}")
    if rows.notice:
        warn(rows.notice)


def _group(number: int, row: dict[str, Any]) -> Group:
    return Group.model_validate({"id": f"line-{number}"} | row)


def _document_of(row: Mapping[str, Any]) -> RubricDocument | None:
    """Read the rubric of a row, if it is a list, an object of another format, or text of several lines.

    Raises:
        FormatError: it is no rubric.
    """
    rubric = row.get("rubric")
    if isinstance(rubric, list) or (isinstance(rubric, dict) and "criteria" not in rubric):
        return read_document(json.dumps(rubric))
    if isinstance(rubric, str) and ("\n" in rubric or rubric.lstrip().startswith(("{", "["))):
        return read_document(rubric)
    return None


def _measured_line(number: int, row: dict[str, Any]) -> MeasuredLine:
    given = [row.pop(name, None) for name in _LIKELIHOODS]
    group = _group(number, row)
    if given == [None, None]:
        return MeasuredLine(number, group, None)
    for name, values in zip(_LIKELIHOODS, given, strict=True):
        if not isinstance(values, list) or len(values) != len(group.responses) or not all(map(_is_logprob, values)):
            raise ValueError(
                f"{name}: expected a list of {len(group.responses)} mean log-likelihoods per token, 0 or less, one for "
                f"each response; give both of {' and '.join(_LIKELIHOODS)}, or neither"
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

    Exits with an error if the file does not contain a rubric.

    Raises:
        UsageError: a file is meant, by its ending, and does not exist.
    """
    path = Path(text)
    if path.is_file():
        try:
            document = read_document(path.read_bytes())
        except FormatError as error:
            exit_with_error(f"--rubric: {text}: {error}", error=error)
        for change in fold_problems(document.changes):
            warn(f"{text}: changed: {change}")
        return document.content
    if path.suffix.lower() in _FILE_SUFFIXES:
        raise UsageError(f"--rubric: the file {text} does not exist; give a file, or a reference such as name@3")
    return text


def one_response(group: Group, index: int) -> Mapping[str, Any]:
    """The group with only one of its responses, so that progress is shown response by response."""
    return group.model_copy(update={"responses": (group.responses[index],)}).model_dump(exclude_none=True)


@dataclass(frozen=True, slots=True)
class ScoredLine:
    """What became of a line: its rewards, or why there are none.

    `judge` names the judge of its first response; `error` is what a request for the line was refused with, if that is
    why.
    """

    number: int
    rewards: GroupRewards | None = None
    refused: str | None = None
    error: AdjudgeError | None = None
    usage: tuple[Usage, ...] = ()
    judge: str = ""


class _Scorer:
    """Scores lines; once the service cannot be reached, it refuses them without sending anything."""

    def __init__(
        self, client: AsyncClient, options: dict[str, Any], slots: asyncio.Semaphore, advance: Callable[[], None]
    ) -> None:
        self._client = client
        self._options = options
        self._slots = slots
        self._advance = advance
        self._together = needs_whole_groups(options.get("mode"), options.get("weighting"))
        self._unreachable: ConnectionFailed | None = None

    async def score(self, line: GroupLine | BadLine) -> ScoredLine:
        """Score the responses of a line one by one, or together if these are compared."""
        if isinstance(line, BadLine):
            return ScoredLine(line.number, refused=line.reason)
        group = line.group
        parts = [group] if self._together else [one_response(group, n) for n in range(len(group.responses))]
        each = len(group.responses) if self._together else 1
        answers = []
        for answer in await asyncio.gather(*(self._ask(part, each) for part in parts)):
            if isinstance(answer, AdjudgeError):
                return ScoredLine(line.number, refused=str(answer), error=answer)
            answers.append(answer)
        responses = tuple(response for answer in answers for response in answer.groups[0].responses)
        judge = answers[0].judge
        return ScoredLine(
            line.number,
            answers[0].groups[0].model_copy(update={"responses": responses}),
            usage=tuple(answer.usage for answer in answers),
            judge="" if judge is None else f"{judge.model}, {judge.fingerprint[:19]}…",
        )

    async def _ask(self, group: Group | Mapping[str, Any], responses: int) -> RewardAnswer | AdjudgeError:
        async with self._slots:
            if self._unreachable is not None:
                return self._unreachable
            try:
                return await self._client.rewards(groups=[group], **self._options)
            except AdjudgeError as error:
                if isinstance(error, ConnectionFailed):
                    self._unreachable = error
                return error
            finally:
                for _ in range(responses):
                    self._advance()


async def stream_groups(
    client: AsyncClient,
    lines: Iterable[GroupLine | BadLine],
    options: dict[str, Any],
    *,
    concurrency: int,
    advance: Callable[[], None],
) -> AsyncGenerator[ScoredLine, None]:
    """Score every response of every line, and yield the lines in order.

    Lines are read as others are finished, in another thread, since reading may wait for a disk or an object store.
    Responses are sent one at a time, so that progress is shown; those of a ranking together, since it compares them.
    `advance` is called after each response. If the service cannot be reached, the lines that were not scored before are
    refused without being sent.
    """
    scorer = _Scorer(client, options, asyncio.Semaphore(concurrency), advance)
    waiting: deque[asyncio.Task[ScoredLine]] = deque()
    rest = iter(lines)
    ended = False
    try:
        while waiting or not ended:
            if not ended and len(waiting) <= concurrency:
                read = await asyncio.to_thread(lambda: list(islice(rest, concurrency)))
                ended = not read
                waiting.extend(asyncio.create_task(scorer.score(line)) for line in read)
            else:
                yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


REWARD_COLUMNS: Mapping[str, ColumnType] = {
    "id": "text", "rewards": "numbers", "statuses": "texts", "failure": "text", "verdicts": "text",
}  # fmt: skip
"""The columns of rewards in Parquet: a group's `id`, and those of `trainer_client.rows.tables.result_fields`."""


class ScoredFile:
    """The results of a file: each is written to `output` when it is there, and without `keep`, only figures are kept.

    Attributes:
        groups: the rewards by line number, in order; empty without `keep`.
        refused: lines that could not be scored and the reasons; without `keep`, the first thousand.
        refused_lines: how many these are.
        unreachable: the error of the first connection that failed. Nothing was asked after it.
        unscored: the unscored responses by the kind of their first failure.
        examples: by kind of failure, the first verdict that left a response unscored, and what happened.
    """

    def __init__(self, output: RowOutput | None = None, *, keep: bool = True) -> None:
        self.lines = self.responses = self.refused_lines = 0
        self.judge = ""
        self.groups: dict[int, GroupRewards] = {}
        self.unreachable: ConnectionFailed | None = None
        self.refused: dict[int, str] = {}
        self.unscored: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.usage: Counter[str] = Counter()
        self._output = output
        self._keep = keep

    def add(self, line: ScoredLine) -> None:
        """Take what became of a line."""
        self.lines += 1
        if isinstance(line.error, ConnectionFailed):
            self.unreachable = self.unreachable or line.error
        if line.rewards is None:
            self.refused_lines += 1
            if self._keep or len(self.refused) < _REASONS_KEPT:
                self.refused[line.number] = str(line.refused)
            return
        self.judge = line.judge or self.judge
        self.responses += len(line.rewards.responses)
        self._count_unscored(line.rewards)
        for usage in line.usage:
            self.usage.update(usage.model_dump())
        if self._keep:
            self.groups[line.number] = line.rewards
        if self._output is not None:
            self._output.write(_row(line.rewards, as_columns=self._output.is_parquet))

    def _count_unscored(self, group: GroupRewards) -> None:
        for number, response in enumerate(group.responses, 1):
            if response.status != "unscored":
                continue
            first = next((one for one in response.verdicts if one.failure or one.status == "uncertain"), None)
            if first is None or first.failure is None:
                self.unscored["no reward" if first is None else "uncertain"] += 1
                continue
            kind, detail = first.failure.kind, first.failure.detail
            self.unscored[kind] += 1
            shown = "".join(character if character.isprintable() else " " for character in detail)
            self.examples.setdefault(kind, f"{group.id}, response {number}, {first.criterion}: {shown}")


async def score_groups(
    client: AsyncClient,
    lines: Sequence[GroupLine],
    options: dict[str, Any],
    *,
    concurrency: int,
    advance: Callable[[], None],
) -> ScoredFile:
    """Like `stream_groups`, for a file whose rewards are all needed at once.

    Raises:
        ConnectionFailed: the service could not be reached.
    """
    scored = ScoredFile()
    async for line in stream_groups(client, lines, options, concurrency=concurrency, advance=advance):
        scored.add(line)
    if scored.unreachable is not None:
        raise scored.unreachable
    return scored


def _row(group: GroupRewards, *, as_columns: bool) -> dict[str, Any]:
    return {"id": group.id} | result_fields(group, single=False) if as_columns else group.model_dump(mode="json")
