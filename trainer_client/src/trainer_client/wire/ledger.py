"""What the ledger gives out: verdicts as they were used, page by page, and how recording stands."""

from datetime import datetime
from typing import Literal

from trainer_client.wire.answers import Verdict
from trainer_client.wire.base import AnswerModel
from trainer_client.wire.criteria import CriterionKind
from trainer_client.wire.messages import Prompt


class RecordedVerdict(AnswerModel):
    """A verdict as one request used it.

    `response` is the place of the response in its group as that request sent it, from 0. `rubric` is the digest of the
    rubric's content, null where there was none, `prompt_digest` that of the prompt, by which responses to the same
    prompt are found together. `reward` is the response's as answered, null where it got none. `kind` and `weight` are
    the criterion's in that rubric, null where the rubric is not kept. `prompt`, `text` and `grounding` are what was
    judged, where texts were asked for and are kept.
    """

    run: str | None
    step: int | None
    group: str
    response: int
    rubric: str | None
    verdict: Verdict
    reward: float | None = None
    kind: CriterionKind | None = None
    weight: float | None = None
    prompt_digest: str | None = None
    request_id: str
    judge: str | None = None
    fingerprint: str | None = None
    at: datetime
    prompt: Prompt | None = None
    text: Prompt | None = None
    grounding: str | None = None


class RecordedPage(AnswerModel):
    """A page of the ledger, oldest first; `next_cursor` fetches the following page and is null on the last."""

    verdicts: tuple[RecordedVerdict, ...]
    next_cursor: str | None = None


class LedgerState(AnswerModel):
    """How the ledger of this process stands.

    `recorded` counts verdicts handed to it since the process started, those found in the spool at its start included;
    `written` those that the database has; `waiting` those still on their way; `refused` those that the database refused
    and that are kept aside; `lost` those given up because memory, the spool or what is kept aside was full.
    `refused_files` is how many files are kept aside: see `adjudge ledger refused`. `spool_bytes` is what waits on disk,
    `memory_bytes` what waits in memory because the spool cannot be written, and `spool_problem` says why, null while it
    can. `lag_s` is how long ago what waits longest was judged or spooled, 0 where nothing waits. `restarts` counts
    threads of the ledger that ended and were started again. `problem` says why the database cannot be written, null
    while it can.
    """

    keeps: Literal["all", "verdicts", "nothing"]
    recorded: int = 0
    written: int = 0
    waiting: int = 0
    lost: int = 0
    refused: int = 0
    refused_files: int = 0
    spool_bytes: int = 0
    memory_bytes: int = 0
    lag_s: float = 0.0
    restarts: int = 0
    problem: str | None = None
    spool_problem: str | None = None
