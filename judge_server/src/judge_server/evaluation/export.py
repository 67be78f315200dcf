"""A run of the ledger as training data, in the dataset formats of TRL: pairs, SFT rows, best-of-n, verdicts.

Rewards and verdicts are those that were answered; no judge is asked. A row has texts if all texts of its response are
texts, and messages otherwise; the first row decides for all.

Pairs and best responses are chosen among the responses to a prompt in a training step: those of the same prompt and
grounding that the same judge and rubric rewarded in the same way, in whatever requests they came. Rewards of a ranking
are only compared within the group that was ranked. Responses without a reward are never chosen, nor compared with.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice, product
from math import comb
from typing import Any, NamedTuple, TypeAlias

from judge_server.errors import invalid_field, unknown_run
from judge_server.evaluation.labelled import MET_FROM
from judge_server.evaluation.labelling import JudgedText, consensus_labels, judged_text, read_texts
from judge_server.ports import LabelStore, LedgerReader
from judge_server.scheduling.time_sharing import run_in_thread
from judge_server.scoring.recorded import (
    has_stored_image,
    read_text,
    recorded_verdicts,
    response_pages,
    storable_text,
)
from rubric_store.ledger.rows import LabelFilter, ResponseFilter, ResponseRow, UseRecord
from trainer_client.wire import Criterion, Verdict
from trainer_client.wire.ledger import ExportKind, ExportSummary, PairsBy

Row: TypeAlias = dict[str, Any]

_INDEXED_AT_ONCE = 5_000
_RESPONSES_AT_ONCE = 64
"""Responses whose texts are in memory at a time, unless a prompt has more."""
_ROWS_AT_ONCE = 64
_KEYS_AT_ONCE = 500
_KEY_BYTES = 16


class ExportQuery(NamedTuple):
    """What to export of a run.

    Attributes:
        project_id, run: the run.
        kind: the rows to make.
        first, last: only responses of these training steps, both included; None for no limit.
        rubric: only responses under the rubric of this digest; None for all.
        criterion: for pairs by criterion and verdicts, only this criterion; None for all but shadow criteria in pairs.
        by: what the responses of a pair differ in.
        all_pairs: every pair of a prompt, rather than one of its best and its worst response.
        min_margin: the smallest margin of a pair.
        min_reward: the smallest reward of an `sft` or `best` row; None for no limit.
        conversational: write messages even if prompts and responses are texts.
    """

    project_id: str
    run: str
    kind: ExportKind = "pairs"
    first: int | None = None
    last: int | None = None
    rubric: bytes | None = None
    criterion: str | None = None
    by: PairsBy = "total"
    all_pairs: bool = False
    min_margin: float = 0.0
    min_reward: float | None = None
    conversational: bool = False

    @property
    def responses(self) -> ResponseFilter:
        """The responses to read."""
        return ResponseFilter(self.project_id, self.run, self.first, self.last, rubric=self.rubric)

    def check(self) -> None:
        """Raise `InvalidRequest` for options that contradict each other or change nothing."""
        if self.first is not None and self.last is not None and self.first > self.last:
            raise invalid_field("last_step", f"is before first_step, which is {self.first}")
        pairs = self.kind == "pairs"
        unused = {
            "by": self.by != "total" and not pairs,
            "all_pairs": self.all_pairs and not pairs,
            "min_margin": self.min_margin != 0 and not pairs,
            "min_reward": self.min_reward is not None and self.kind not in ("sft", "best"),
            "criterion": self.criterion is not None and self.kind != "verdicts" and self.by != "criterion",
        }
        for name, wrong in unused.items():
            if wrong:
                also = " by total" if pairs and name == "criterion" else ""
                raise invalid_field(name, f"does not apply to an export as {self.kind}{also}; leave it out")


async def export(
    ledger: LedgerReader, labels: LabelStore, query: ExportQuery
) -> AsyncGenerator[Row | ExportSummary, None]:
    """Yield the rows of a run in the order of judging, and at the end a summary.

    Memory: about 300 bytes for each row, by which repetitions are known, and for pairs and best responses about 400
    bytes for each response of the run, by which those to a prompt are found. Texts are in memory for 64 responses at a
    time, or those to one prompt if these are more.

    Raises:
        NotFound: the ledger has no such responses; raised first.
        InvalidRequest: options contradict each other (raised first), or the ledger has no texts of the run.
    """
    query.check()
    rows = _Rows(query)
    read = _grouped(ledger, query) if query.kind in ("pairs", "best") else _paged(ledger, query)
    if query.kind == "verdicts":
        rows.labels = await consensus_labels(labels, LabelFilter(query.project_id, query.run))
    async for groups in read:
        texts = await read_texts(ledger, query.project_id, rows.texts_needed(groups))
        made = rows.make(groups, texts)
        while some := await run_in_thread(list, islice(made, _ROWS_AT_ONCE)):
            for row in some:
                yield row
    summary = rows.summary()
    if not summary.responses:
        raise unknown_run(f"no such responses of run {query.run!r}")
    if not summary.rows and summary.without_texts:
        raise invalid_field(
            "run",
            f"the ledger has no texts of run {query.run!r}; set ADJUDGE_LEDGER=all (its default) before you judge the "
            "responses that you want to export",
        )
    yield summary


_LEFT_OUT: Mapping[str, str] = {
    "unrewarded": "responses without a reward, because judging failed or no reward was asked for",
    "alone": "prompts with fewer than two different responses to compare",
    "tied": "comparisons without a difference",
    "below": "below the smallest margin or reward",
    "repeated": "repeated responses or rows",
    "failed": "verdicts that failed, are uncertain or were left out",
    "without_criterion": "verdicts on no criterion of a rubric, such as comparisons",
    "without_texts": "rows whose texts are not in the ledger, which ADJUDGE_LEDGER=all keeps",
    "with_images": "rows with images, of which the ledger keeps only digests",
    "of_other_form": "rows of messages, since the first row has texts; --conversational makes all rows messages",
}


def left_out(summary: ExportSummary) -> list[str]:
    """Return how much an export left out, with the reason of each part."""
    counts = [(getattr(summary, name), reason) for name, reason in _LEFT_OUT.items()]
    return [f"{count:,} {reason}" for count, reason in counts if count]


async def _paged(ledger: LedgerReader, query: ExportQuery) -> AsyncGenerator[list[list[UseRecord]], None]:
    """Read the responses in the order of judging, each as a group of its own."""
    wanted = query.responses._replace(limit=_RESPONSES_AT_ONCE, with_votes=query.kind == "verdicts")
    async for page in response_pages(ledger, wanted):
        yield [[record] for record in page]


async def _grouped(ledger: LedgerReader, query: ExportQuery) -> AsyncGenerator[list[list[UseRecord]], None]:
    """Read the responses that are compared with each other together, in the order of the first of each group."""
    groups: dict[bytes, list[tuple[bytes, int]]] = {}
    wanted = query.responses._replace(limit=_INDEXED_AT_ONCE, with_votes=False)
    part = 0
    async for page in response_pages(ledger, wanted):
        for record in page:
            part += record.response.position == 0
            groups.setdefault(_comparable(record, part), []).append(record.key)
    votes = query.kind == "pairs" and query.by == "criterion"
    rest = iter(groups.values())
    while some := list(_some_groups(rest)):
        keys = [key for group in some for key in group]
        by_key: dict[tuple[bytes, int], UseRecord] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            own = tuple(keys[start : start + _KEYS_AT_ONCE])
            records = await ledger.responses(query.responses._replace(keys=own, with_votes=votes))
            by_key |= {record.key: record for record in records}
        yield [[by_key[key] for key in group if key in by_key] for group in some]


def _some_groups(groups: Iterator[list[tuple[bytes, int]]]) -> Iterator[list[tuple[bytes, int]]]:
    """Take the next groups, until they have `_RESPONSES_AT_ONCE` responses or more."""
    count = 0
    while count < _RESPONSES_AT_ONCE and (group := next(groups, None)) is not None:
        count += len(group)
        yield group


def _comparable(record: UseRecord, part: int) -> bytes:
    """Return a digest that is equal for responses that are compared; `part` numbers the groups as they were sent."""
    request, response = record.request, record.response
    ranked = request.mode == "ranking"
    return _digest(
        request.step, request.fingerprint, request.mode, request.reward_rules,
        response.rubric, response.prompt, response.grounding,
        part if ranked else None,
    )  # fmt: skip


def _digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=_KEY_BYTES).digest()


class _Pair(NamedTuple):
    """A pair, with its margin and what its verdicts are about, if they are all that it differs in."""

    chosen: UseRecord
    rejected: UseRecord
    margin: float
    criterion: Criterion | None = None


class _Rows:
    """Makes the rows of an export, and counts what is left out."""

    def __init__(self, query: ExportQuery) -> None:
        self.labels: Mapping[JudgedText, bool] = {}
        self._query = query
        makers = {"pairs": self._pairs, "best": self._best, "sft": self._sft, "verdicts": self._verdicts}
        self._make = makers[query.kind]
        self._counts: Counter[str] = Counter()
        self._seen: set[bytes] = set()
        self._messages: bool | None = True if query.conversational else None
        self._rubric: tuple[bytes, Mapping[str, Criterion]] = b"", {}

    def summary(self) -> ExportSummary:
        """Return the totals so far."""
        return ExportSummary(run=self._query.run or None, **self._counts)

    def texts_needed(self, groups: Iterable[Sequence[UseRecord]]) -> Iterator[ResponseRow]:
        """Yield the responses whose texts rows may need."""
        needs_rewards = self._query.kind != "verdicts" and self._query.by == "total"
        return (
            one.response
            for group in groups
            for one in group
            if not needs_rewards or one.response.own_reward is not None
        )

    def make(self, groups: Iterable[Sequence[UseRecord]], texts: Mapping[bytes, str]) -> Iterator[Row]:
        """Make the rows of groups of comparable responses."""
        for group in groups:
            self._counts["responses"] += len(group)
            for row in self._make(group, texts):
                self._counts["rows"] += 1
                yield row

    def _rewarded(self, group: Sequence[UseRecord]) -> list[UseRecord]:
        """Return the responses that have a reward of their own verdicts."""
        rewarded = [one for one in group if one.response.own_reward is not None]
        self._counts["unrewarded"] += len(group) - len(rewarded)
        return rewarded

    def _different(self, group: Sequence[UseRecord]) -> list[UseRecord]:
        """Return the first of the responses with each text."""
        first: dict[bytes, UseRecord] = {}
        for one in group:
            first.setdefault(one.response.response, one)
        self._counts["repeated"] += len(group) - len(first)
        return list(first.values())

    def _sft(self, group: Sequence[UseRecord], texts: Mapping[bytes, str]) -> Iterator[Row]:
        for one in self._rewarded(group):
            row = self._completion(one, texts)
            if row is not None:
                yield row

    def _best(self, group: Sequence[UseRecord], texts: Mapping[bytes, str]) -> Iterator[Row]:
        different = self._different(self._rewarded(group))
        if different:
            row = self._completion(max(different, key=_known_reward), texts)
            if row is not None:
                yield {**row, "best_of": len(different)}

    def _completion(self, one: UseRecord, texts: Mapping[bytes, str]) -> Row | None:
        reward, least = _known_reward(one), self._query.min_reward
        if least is not None and reward < least:
            self._counts["below"] += 1
            return None
        written = self._written(texts, one, one.response.response)
        if written is None or self._is_repeated(one.response.prompt, one.response.response):
            return None
        prompt, completion = written
        return {"prompt": prompt, "completion": completion, "reward": reward, **_origin(one)}

    def _pairs(self, group: Sequence[UseRecord], texts: Mapping[bytes, str]) -> Iterator[Row]:
        if self._query.by == "total":
            rewarded = self._different(self._rewarded(group))
            pairs = self._pairs_of([(one, _known_reward(one)) for one in rewarded])
        else:
            pairs = self._pairs_by_criterion(self._different(group), texts)
        for pair in pairs:
            chosen, rejected = pair.chosen.response, pair.rejected.response
            written = self._written(texts, pair.chosen, chosen.response, rejected.response)
            about = pair.criterion
            name = None if about is None else about.id
            if written is None or self._is_repeated(chosen.prompt, chosen.response, rejected.response, name):
                continue
            row = dict(zip(("prompt", "chosen", "rejected"), written, strict=True)) | {"margin": pair.margin}
            if about is None:
                row |= {
                    "chosen_reward": pair.chosen.response.own_reward,
                    "rejected_reward": pair.rejected.response.own_reward,
                }
            else:
                row |= {"criterion": about.id, "description": storable_text(about.description)}
            yield row | _origin(pair.chosen)

    def _pairs_of(self, valued: Sequence[tuple[UseRecord, float]], about: Criterion | None = None) -> Iterator[_Pair]:
        """Yield the pairs of responses with different values, of all or of the best and the worst one."""
        if len(valued) < 2:
            self._counts["alone"] += 1
            return
        if not self._query.all_pairs:
            valued = [max(valued, key=lambda each: each[1]), min(valued, key=lambda each: each[1])]
        levels: dict[float, list[UseRecord]] = defaultdict(list)
        for one, value in valued:
            levels[value].append(one)
        self._counts["tied"] += sum(comb(len(level), 2) for level in levels.values())
        for high, low in combinations(sorted(levels, reverse=True), 2):
            if high - low < self._query.min_margin:
                self._counts["below"] += len(levels[high]) * len(levels[low])
                continue
            for chosen, rejected in product(levels[high], levels[low]):
                yield _Pair(chosen, rejected, high - low, about)

    def _pairs_by_criterion(self, group: Sequence[UseRecord], texts: Mapping[bytes, str]) -> Iterator[_Pair]:
        criteria = self._criteria(group[0], texts) if group else {}
        verdicts = [(one, {verdict.criterion: verdict for verdict in recorded_verdicts(one)}) for one in group]
        for criterion in criteria.values():
            if criterion.id != self._query.criterion and (criterion.shadow or self._query.criterion is not None):
                continue
            given = [(one, said[criterion.id]) for one, said in verdicts if criterion.id in said]
            scored = [(one, verdict) for one, verdict in given if verdict.score is not None]
            self._counts["failed"] += len(given) - len(scored)
            yield from self._pairs_on(criterion, scored)

    def _pairs_on(self, criterion: Criterion, scored: Sequence[tuple[UseRecord, Verdict]]) -> Iterator[_Pair]:
        """Yield pairs of a response that a criterion speaks for and one that it speaks against."""
        sign = -1.0 if criterion.avoided else 1.0
        use = "probability" if all(verdict.probability is not None for _, verdict in scored) else "score"
        valued = [(one, sign * getattr(verdict, use)) for one, verdict in scored]
        met = {one.key: (verdict.score or 0.0) >= MET_FROM for one, verdict in scored}
        if len(scored) >= 2 and len(set(met.values())) == 1:
            self._counts["tied"] += 1
            return
        for pair in self._pairs_of(valued, criterion):
            if met[pair.rejected.key] == criterion.avoided != met[pair.chosen.key]:
                yield pair
            else:
                self._counts["tied"] += 1

    def _verdicts(self, group: Sequence[UseRecord], texts: Mapping[bytes, str]) -> Iterator[Row]:
        for one in group:
            row, criteria = one.response, self._criteria(one, texts)
            for verdict in recorded_verdicts(one):
                criterion = criteria.get(verdict.criterion)
                if criterion is None:
                    self._counts["without_criterion"] += 1
                    continue
                if self._query.criterion not in (None, criterion.id):
                    continue
                about = judged_text(row, criterion.id)
                label = self.labels.get(about)
                if verdict.score is None and label is None:
                    self._counts["failed"] += 1
                    continue
                written = self._written(texts, one, row.response)
                if written is None or self._is_repeated(*about):
                    continue
                yield {
                    "prompt": written[0],
                    "response": written[1],
                    "grounding": None if row.grounding is None else read_text(texts[row.grounding]),
                    "criterion": criterion.id,
                    "description": storable_text(criterion.description),
                    "score": verdict.score,
                    "probability": verdict.probability,
                    "label": label,
                    "method": verdict.method,
                    **_origin(one),
                }

    def _criteria(self, one: UseRecord, texts: Mapping[bytes, str]) -> Mapping[str, Criterion]:
        """Return the criteria of a response's rubric by id; none if it had no rubric."""
        digest = one.response.rubric or b""
        if self._rubric[0] != digest:
            stored = json.loads(texts.get(digest, "[]"))
            self._rubric = digest, {each["id"]: Criterion.model_validate(each) for each in stored}
        return self._rubric[1]

    def _is_repeated(self, *parts: object) -> bool:
        """Whether a row of these texts was made before; the next one is."""
        key = _digest(*parts)
        repeated = key in self._seen
        self._seen.add(key)
        self._counts["repeated"] += repeated
        return repeated

    def _written(self, texts: Mapping[bytes, str], of: UseRecord, *responses: bytes) -> list[Any] | None:
        """Return the prompt and responses in the form of the export, or count why they are left out."""
        digests = [of.response.prompt, *responses]
        grounding = of.response.grounding
        if any(digest not in texts for digest in (*digests, *([] if grounding is None else [grounding]))):
            self._counts["without_texts"] += 1
            return None
        found = [texts[digest] for digest in digests]
        prompt, *answers = map(read_text, found)
        conversation = any(not isinstance(text, str) for text in (prompt, *answers))
        if conversation and any(map(has_stored_image, found)):
            self._counts["with_images"] += 1
            return None
        if self._messages is None:
            self._messages = conversation
        if not self._messages:
            if conversation:
                self._counts["of_other_form"] += 1
                return None
            return [prompt, *answers]
        return [_as_messages("user", prompt), *[_as_messages("assistant", answer) for answer in answers]]


def _as_messages(role: str, text: Any) -> Any:
    """Return messages, or a text as the one message of a role."""
    return [{"role": role, "content": text}] if isinstance(text, str) else text


def _known_reward(one: UseRecord) -> float:
    reward = one.response.own_reward
    assert reward is not None
    return reward


def _origin(one: UseRecord) -> Row:
    """Return where a row is from, as the console and `GET /v1/verdicts` name it."""
    return {"step": one.request.step, "group": one.response.group_id}
