"""Which judge a fingerprint names: the loaded judges are asked for theirs, by protocol."""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from judge_server.errors import ServiceError
from judge_server.judging.calibration import NEUTRAL, StoredCalibration
from judge_server.judging.questions import JudgingConfig
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.judge import Judge
from trainer_client.wire import JudgingProtocol


class JudgeDetails(NamedTuple):
    """The judge with a fingerprint: its name and model, how it is asked, and its calibration, None if it has none.

    `stored` is the calibration's version if it was fitted and stored, with its measured figures.
    """

    name: str
    model: str
    protocol: str
    rationale: bool
    calibration: str | None
    uncalibrated: str
    stored: StoredCalibration | None


def judge_details(judges: Mapping[str, AnyJudge], fingerprint: str) -> JudgeDetails | None:
    """The loaded judge that has this fingerprint with ordinary options; None if none has."""
    for name, judge in judges.items():
        for config in _ordinary_configs():
            try:
                prepared = judge.prepared(config)
            except ServiceError:  # this judge is not fit for the protocol
                continue
            if prepared.fingerprint == fingerprint:
                calibration = None if prepared.calibration == NEUTRAL else prepared.calibration.name
                fitted = judge.stored_calibrations if isinstance(judge, Judge) else ()
                stored = next((one for one in fitted if one.reference == calibration), None)
                return JudgeDetails(
                    name, judge.identity.model, config.protocol, config.rationale, calibration,
                    prepared.uncalibrated, stored,
                )  # fmt: skip
    return None


def _ordinary_configs() -> Iterator[JudgingConfig]:
    """Every protocol with and without a rationale, and with one or all criteria per call."""
    for protocol in get_args(JudgingProtocol):
        calls: tuple[int | Literal["all"], ...] = ("all",) if protocol == "checklist" else (1, "all")
        for per_call in calls:
            for rationale in (False, True):
                yield JudgingConfig(protocol, per_call, rationale)
