"""The operation `reverify`: recorded groups of a run are judged again, in a run of their own, and compared.

A chunk names responses of the ledger. When it is worked on, they are read, and sent as a request like the recorded one.
So the operation copies no texts, and what has been purged meanwhile is left out.
"""

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, JsonValue, ValidationError

from judge_server.errors import unknown_run
from judge_server.evaluation.labelled import MET_FROM
from judge_server.evaluation.labelling import digests_of, material_of, read_texts
from judge_server.operations.handlers.base import FatalChunkError, InvalidOperationError
from judge_server.operations.handlers.judging import (
    CHUNK_OPTIONS,
    CHUNK_RESPONSES,
    ClientFactory,
    SummingHandler,
    fingerprint_of,
)
from judge_server.ports import LedgerReader, OperationStore, RubricSource
from judge_server.scoring.recorded import has_stored_image, recorded_verdicts, response_pages, storable_text
from judge_server.scoring.rubrics import find_rubric
from rubric_store.ledger.rows import RequestRow, ResponseFilter, UseFilter, UseRecord
from rubric_store.operations.rows import ChunkOutcome, LeasedChunk, NewChunk
from trainer_client.wire import (
    GroupRewards,
    GroupVerdicts,
    RewardAnswer,
    RewardRequest,
    VerdictAnswer,
    VerdictRequest,
)
from trainer_client.wire.operations import MAX_INPUTS, ReverifyOperation
from trainer_client.wire.problems import field_errors
from trainer_client.wire.rewards import JudgingRules, RewardRules
from trainer_client.wire.verdicts import Usage

_READ_AT_ONCE = 2_000
_PART_CHARACTERS = 4_000_000
"""The most characters of the groups of one request. As JSON, that is far below the limit of a body."""

_Key = tuple[bytes, int]
"""A response of the ledger: its request and place."""


class _Unusable(Exception):
    """A group cannot be judged again; the message is the reason, under which it is counted."""


class _RecordedGroup(NamedTuple):
    """A recorded group: its number among those of the operation, its records, the group to send, and its characters."""

    number: int
    recorded: list[UseRecord]
    group: dict[str, Any]
    size: int


class ReverifyHandler(SummingHandler):
    """Judges recorded groups again, through a client of the service.

    A result has a group's rewards or verdicts as the service answers them, its `index`, `step` and the judge's
    `fingerprint`, and under `before` the recorded `fingerprint` and each response's `reward`, `status`, `scores` by
    criterion, null for a verdict without one, and the number of verdicts that `failed`. Groups that cannot be judged
    again are counted by reason.
    """

    def __init__(
        self, client_factory: ClientFactory, rubrics: RubricSource, store: OperationStore, ledger: LedgerReader
    ) -> None:
        super().__init__(client_factory, rubrics, store)
        self._ledger = ledger

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Find the groups, and put those that were recorded in the same way into chunks, in the order of judging."""
        assert isinstance(request, ReverifyOperation)
        request = request.model_copy(update={"run": storable_text(request.run)})
        options = request.model_dump(mode="json", exclude={"kind"}, exclude_unset=True) | {"into": request.new_run}
        if isinstance(request.rubric, str):
            options["rubric"] = (await find_rubric(self.rubrics, project_id, request.rubric)).reference
        chunks: list[NewChunk] = []
        places: list[list[_Key]] = []
        alike: tuple[object, ...] | None = None
        first = 0

        def end_chunk() -> None:
            nonlocal first
            if places:
                body: JsonValue = [[[request.hex(), place] for request, place in group] for group in places]
                chunks.append(NewChunk(len(places), {"first": first, "groups": body}))
                first += len(places)
                places.clear()

        async for recorded, keys in self._groups(project_id, request):
            same = recorded.step, recorded.mode, recorded.protocol, recorded.reward_rules, recorded.judging_rules
            if same != alike or sum(map(len, places)) + len(keys) > CHUNK_RESPONSES:
                end_chunk()
                alike = same
            places.append(keys)
            if first + len(places) > MAX_INPUTS:
                raise InvalidOperationError(
                    f"run {request.run!r} has more than {MAX_INPUTS:,} such groups; select some by step"
                )
        end_chunk()
        if not chunks:
            raise InvalidOperationError(await self._nothing(project_id, request))
        return options, chunks

    async def _nothing(self, project_id: str, request: ReverifyOperation) -> str:
        recorded = await self._ledger.responses(ResponseFilter(project_id, request.run, limit=1, with_votes=False))
        if not recorded:
            return unknown_run(f"no record of run {request.run!r}").detail
        remedy = "; verdicts 'all' judges every group again" if request.verdicts == "failed" else ""
        return f"no group of run {request.run!r} is to be judged again{remedy}"

    async def _groups(
        self, project_id: str, request: ReverifyOperation
    ) -> AsyncIterator[tuple[RequestRow, list[_Key]]]:
        """Find the groups to judge again, as they were sent, with their requests."""
        failed = await self._failed(project_id, request) if request.verdicts == "failed" else None
        if failed is not None and not failed:
            return
        wanted = ResponseFilter(
            project_id, request.run, request.first_step, request.last_step, limit=_READ_AT_ONCE, with_votes=False
        )
        group: _Key | None = None
        keys: list[_Key] = []
        recorded: RequestRow | None = None
        async for page in response_pages(self._ledger, wanted):
            for one in page:
                if (begins := one.group) != group:
                    if recorded is not None:
                        yield recorded, keys
                    chosen = (failed is None or begins in failed) and _share(begins) < request.share
                    group, keys, recorded = begins, [], one.request if chosen else None
                keys.append(one.key)
        if recorded is not None:
            yield recorded, keys

    async def _failed(self, project_id: str, request: ReverifyOperation) -> set[_Key]:
        """Find the groups with a failed verdict."""
        found: set[_Key] = set()
        wanted = UseFilter(project_id, request.run, status="failed", limit=_READ_AT_ONCE)
        while True:
            page = await self._ledger.uses(wanted)
            found.update([one.group for one in page])
            if len(page) < _READ_AT_ONCE:
                return found
            last = page[-1].votes[0][0]
            wanted = wanted._replace(after=(last.request, last.place, last.slot))

    async def run_chunk(self, work: LeasedChunk) -> ChunkOutcome:
        """Judge the groups of a chunk again."""
        operation = ReverifyOperation.model_validate(work.request)
        found, discarded = await self._read(work, operation)
        results: list[dict[str, Any]] = []
        usage, failed = Counter[str](), 0
        for part in _parts(found):
            request = _request(part[0].recorded[0].request, part, operation)
            answer: RewardAnswer | VerdictAnswer
            if isinstance(request, RewardRequest):
                answer = await self.judge(work, request, RewardAnswer)
            else:
                answer = await self.judge(work, request, VerdictAnswer)
            usage.update({name: value for name, value in answer.usage if value})
            groups: Sequence[GroupRewards | GroupVerdicts] = answer.groups
            for one, group in zip(part, groups, strict=True):
                failed += any(v.status == "failed" for response in group.responses for v in response.verdicts)
                results.append(
                    {"index": one.number, "step": one.recorded[0].request.step, "fingerprint": fingerprint_of(answer)}
                    | group.model_dump(mode="json")
                    | {"before": _before(one.recorded)}
                )
        return ChunkOutcome(results, Usage.model_validate(usage), {"failed": failed}, discarded)

    async def _read(
        self, work: LeasedChunk, operation: ReverifyOperation
    ) -> tuple[list["_RecordedGroup"], Counter[str]]:
        """Read the groups of a chunk; return them and how many cannot be judged again, by reason."""
        project, run = work.ref.project_id, operation.run
        places = [[(bytes.fromhex(request), place) for request, place in group] for group in work.body["groups"]]
        wanted = ResponseFilter(project, run, keys=tuple([key for group in places for key in group]))
        records = {one.key: one for one in await self._ledger.responses(wanted)}
        texts = await read_texts(self._ledger, project, [one.response for one in records.values()])
        found: list[_RecordedGroup] = []
        discarded: Counter[str] = Counter()
        for index, keys in enumerate(places, work.body["first"]):
            recorded = [records[key] for key in keys if key in records]
            try:
                if len(recorded) < len(keys):
                    raise _Unusable("purged")
                size = sum(len(texts.get(digest, "")) for one in recorded for digest in digests_of(one.response))
                found.append(_RecordedGroup(index, recorded, _group(recorded, texts, operation), size))
            except _Unusable as reason:
                discarded[str(reason)] += 1
        return found, discarded

    async def summary(self, work: LeasedChunk) -> dict[str, JsonValue]:
        """Compare all results with what was recorded; rewards are compared where there is one before and after."""
        counts = Counter(dict.fromkeys(_COUNTS, 0))
        pairs: list[tuple[float, float]] = []
        async for result in self.results(work.ref):
            counts["groups"] += 1
            for after, before in zip(result["responses"], result["before"]["responses"], strict=True):
                counts["responses"] += 1
                counts["failed_before"] += before["failed"]
                counts.update(_changes(before["scores"], after["verdicts"]))
                old, new = _own_reward(before), _own_reward(after)
                counts["rewarded_before"] += old is not None
                counts["rewarded_after"] += new is not None
                if old is not None and new is not None:
                    pairs.append((old, new))
        means = [sum(rewards) / len(pairs) for rewards in zip(*pairs, strict=True)] if pairs else [None, None]
        return {
            "run": work.request["run"],
            "into": work.request["into"],
            **counts,
            "rewards": len(pairs),
            "rewards_changed": sum(abs(before - after) > _SAME_REWARD for before, after in pairs),
            "mean_reward_before": means[0],
            "mean_reward_after": means[1],
        }


_COUNTS = (
    *("groups", "responses", "rewarded_before", "rewarded_after"),
    *("verdicts", "failed_before", "failed_after", "compared", "changed"),
)
_SAME_REWARD = 1e-9


def _own_reward(response: Mapping[str, Any]) -> float | None:
    """Return the reward that verdicts gave; None without one, or if the failure policy alone made it."""
    return None if response.get("status") == "unscored" else response.get("reward")


def _changes(before: Mapping[str, float | None], after: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Count verdicts that failed, and those that were met before and are not, or the other way round."""
    counts = Counter[str](verdicts=len(after))
    for verdict in after:
        counts["failed_after"] += verdict["status"] == "failed"
        old, new = before.get(verdict["criterion"]), verdict["score"]
        if old is not None and new is not None:
            counts["compared"] += 1
            counts["changed"] += (old >= MET_FROM) != (new >= MET_FROM)
    return counts


def _parts(found: Sequence[_RecordedGroup]) -> Iterator[list[_RecordedGroup]]:
    """Divide groups into requests that are no larger than `_PART_CHARACTERS`, but for a single group that is."""
    part: list[_RecordedGroup] = []
    for one in found:
        if part and sum(each.size for each in part) + one.size > _PART_CHARACTERS:
            yield part
            part = []
        part.append(one)
    if part:
        yield part


def _share(group: _Key) -> float:
    """Return a number in [0, 1) that is always the same for a group."""
    request, place = group
    return int.from_bytes(hashlib.sha256(request + place.to_bytes(4, "big")).digest()[:8], "big") / 2**64


def _group(recorded: Sequence[UseRecord], texts: Mapping[bytes, str], operation: ReverifyOperation) -> dict[str, Any]:
    """Return a group as it was sent. Raises `_Unusable` if the ledger lacks what its judge saw."""
    first = recorded[0].response
    rules = JudgingRules.read(recorded[0].request.judging_rules)
    if rules is None:
        raise _Unusable("recorded before options were")
    found = [texts.get(digest) for one in recorded for digest in digests_of(one.response)]
    if None in found:
        raise _Unusable("without texts")
    if any(has_stored_image(text) for text in found if text is not None):
        raise _Unusable("with images")
    steps = operation.judging if "steps" in operation.judging.model_fields_set else rules.judging
    if steps.steps == "given" and "reasoning" in operation.judging.model_fields_set:
        raise _Unusable("with steps in another part of the response")
    group = {
        "id": first.group_id,
        "prompt": json.loads(texts[first.prompt]),
        "responses": [_response(one, texts, with_steps=steps.steps == "given") for one in recorded],
        **material_of(first, texts),
    }
    if operation.rubric is None and first.rubric is not None:
        group["rubric"] = {"criteria": json.loads(texts[first.rubric])}
    return group


def _response(record: UseRecord, texts: Mapping[bytes, str], *, with_steps: bool) -> dict[str, Any]:
    row = record.response
    response = {"text": json.loads(texts[row.response]), "tokens": row.tokens, "stopped": row.stopped}
    if with_steps:
        response["steps"] = _steps(row.spans)
    return response


def _steps(spans: str | None) -> list[tuple[int, int]]:
    """Return the recorded steps under their numbers. Raises `_Unusable` if there are none.

    Steps in the thinking, which is not judged, have no spans. A character of it stands for each of them, so that the
    next step keeps its number.
    """
    steps = [(number, start, end) for number, start, end in json.loads(spans or "[]") if number > 0]
    if not steps:
        raise _Unusable("without steps")
    thought = [(place, place + 1) for place in range(steps[0][0] - 1)]
    return thought + [(start, end) for _, start, end in steps]


def _request(
    recorded: RequestRow, groups: Sequence[_RecordedGroup], operation: ReverifyOperation
) -> RewardRequest | VerdictRequest:
    """Return a request like the recorded one. Raises `FatalChunkError` if the changed options cannot be combined."""
    rules = JudgingRules.read(recorded.judging_rules) or JudgingRules()
    changed = {name: getattr(operation.judging, name) for name in operation.judging.model_fields_set}
    body: dict[str, Any] = {
        **CHUNK_OPTIONS,
        "run": operation.new_run,
        "step": recorded.step,
        "reverifies": rules.reverifies or operation.run,  # rubric dropout draws by the run that was judged first
        "allow_retired": True,
        "judge": operation.judge or rules.judge,
        "judging": dict(rules.judging) | changed,
        "rubric": operation.rubric,
        "groups": [one.group for one in groups],
    }
    try:
        same_judge = operation.judge in (None, rules.judge)
        if recorded.mode is None:
            band = rules.uncertain_band if same_judge else None
            return VerdictRequest.model_validate(body | {"uncertain_band": band})
        rewarded = RewardRules.read(recorded.reward_rules)
        if rewarded is None:
            raise FatalChunkError(f"a later release recorded how responses of run {operation.run!r} were rewarded")
        policies = {
            name: "null" if (policy := getattr(rewarded, name)) == "error" else policy
            for name in ("on_failure", "on_uncertain")
        }
        band = rewarded.uncertain_band if same_judge else None
        body |= {**policies, "reward": rewarded.reward, "dropout": rewarded.dropout, "uncertain_band": band}
        return RewardRequest.model_validate(body)
    except ValidationError as error:
        first = field_errors(error.errors())[0]
        raise FatalChunkError(f"{first.field}: {first.message}" if first.field else first.message) from None


def _before(recorded: Sequence[UseRecord]) -> dict[str, Any]:
    """What was recorded of a group."""
    return {
        "fingerprint": recorded[0].request.fingerprint,
        "responses": [
            {
                "reward": one.response.reward,
                "status": one.response.status,
                "scores": {verdict.criterion: verdict.score for verdict in verdicts},
                "failed": sum(verdict.status == "failed" for verdict in verdicts),
            }
            for one, verdicts in ((one, list(recorded_verdicts(one))) for one in recorded)
        ],
    }
