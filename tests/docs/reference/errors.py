"""Every error: problems of the API, failures of verdicts, errors of the client, and errors of commands."""

import inspect
from collections.abc import Iterator
from typing import get_args

from adjudge_services.store import StartError
from judge_server import errors as server_errors
from judge_server.errors import EngineStartError, EngineUnavailable, ServiceError
from judge_server.evaluation.fitting.calibrations import MissingExtraError
from judge_server.ledger.spool import QuarantineFull
from judge_server.models.catalogue import ModelError
from rubric_store.formats import FormatError
from tests.docs.reference.markdown import paragraphs, table
from trainer_client import errors as client
from trainer_client.wire.problems import ProblemType
from trainer_client.wire.verdicts import FAILURE_MEANINGS

COMMAND_ERRORS = (
    StartError, EngineStartError, EngineUnavailable, ModelError, FormatError, MissingExtraError, QuarantineFull,
)  # fmt: skip
"""Errors of commands that have a section of their own."""


def problem_classes() -> dict[str, type[ServiceError]]:
    """By type, the class of the service's errors that documents a problem."""
    found: dict[str, type[ServiceError]] = {}
    for _, each in inspect.getmembers(server_errors, inspect.isclass):
        if issubclass(each, ServiceError):
            found[each.type] = each
    return found


def problems() -> str:
    """A table of the types of problems, and a section for each."""
    classes = problem_classes()
    codes = [(kind.rpartition(":")[2], classes[kind]) for kind in get_args(ProblemType)]
    rows = [
        (f"[`{code}`](#{code})", str(one.status), "yes" if one.retryable else "no", paragraphs(one.__doc__)[0])
        for code, one in codes
    ]
    lines = [table(("code", "status", "retryable", "when"), rows), ""]
    for code, one in codes:
        raised = client.ERROR_CLASSES[one.type].__name__
        retryable = "The same request may succeed later" if one.retryable else "The same request fails again"
        lines += [f"### {code}", "", *_spaced(paragraphs(one.__doc__))]
        lines += [f"Status {one.status}, type `{one.type}`. {retryable}. The client raises `{raised}`.", ""]
        if code in FAILURE_MEANINGS:
            lines += [f"As the failure of a verdict: {' '.join(FAILURE_MEANINGS[code])}", ""]  # type: ignore[index]
    return "\n".join(lines)


def failures() -> str:
    """A table of the kinds of failures, and a section for each that has no section yet."""
    problem_codes = {kind.rpartition(":")[2] for kind in get_args(ProblemType)}
    lines = [table(("kind", "what happened"), [(f"[`{kind}`](#{kind})", m.meaning) for kind, m in _failures()]), ""]
    for kind, (meaning, remedy) in _failures():
        if kind not in problem_codes:
            lines += [f"### {kind}", "", meaning, "", f"What helps: {remedy}", ""]
    return "\n".join(lines)


def _failures() -> Iterator[tuple[str, tuple[str, str]]]:
    yield from FAILURE_MEANINGS.items()


def client_errors() -> str:
    """A section for each error of the client that answers no problem of the API."""
    problem_codes = {kind.rpartition(":")[2] for kind in get_args(ProblemType)}
    lines = []
    for name, each in inspect.getmembers(client, inspect.isclass):
        if name != each.__name__ or not issubclass(each, client.AdjudgeError):  # the names of other SDKs
            continue
        if each.code not in problem_codes:
            lines += [
                f"### {each.code}",
                "",
                *_spaced(paragraphs(each.__doc__)),
                f"The client raises `{each.__name__}`.",
                "",
            ]
    return "\n".join(lines)


def command_errors() -> str:
    """A section for each error of commands that has a code."""
    lines = []
    for each in COMMAND_ERRORS:
        lines += [f"### {each.code}", "", *_spaced(paragraphs(each.__doc__))]  # type: ignore[attr-defined]
    return "\n".join(lines)


def _spaced(parts: list[str]) -> list[str]:
    return [line for part in parts for line in (part, "")]
