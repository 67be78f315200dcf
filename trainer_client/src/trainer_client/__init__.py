"""Adjudge's client: rewards for groups of model responses, judged by rubrics.

`Client` and `AsyncClient` call the service. The formulas that client and service share are in `trainer_client.rewards`
and `trainer_client.steps`, the messages in `trainer_client.wire`. The clients are imported when they are used, since
they take most of the time, and many programs need only the messages.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from trainer_client.errors import (
    AdjudgeError,
    AliasMoved,
    APIConnectionError,
    APITimeoutError,
    AuthenticationError,
    BudgetExhausted,
    ConnectionFailed,
    Forbidden,
    InProgress,
    InvalidRequest,
    JudgingFailed,
    MismatchedAnswer,
    NotFound,
    NotReady,
    Overloaded,
    RateLimitError,
    RubricRefused,
    RubricRetired,
    ServerError,
    TimedOut,
    Unauthorized,
    UnknownRubric,
    WeightsChanged,
)
from trainer_client.wire import Criterion, Group, LengthPenalty, Message, OverlongPenalty, Pair, Response, RubricContent

if TYPE_CHECKING:
    from trainer_client.client.answers import AsyncRewardStream
    from trainer_client.client.clients import AsyncClient
    from trainer_client.client.sync import Client, RewardStream

__version__ = version("adjudge-client")

_CLIENTS = {"AsyncClient": "clients", "AsyncRewardStream": "answers", "Client": "sync", "RewardStream": "sync"}
"""The module of `trainer_client.client` that each name is in."""


def __getattr__(name: str) -> Any:
    """Import what has this name when it is first used."""
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.client.{_CLIENTS[name]}"), name)


__all__ = [
    "APIConnectionError",
    "APITimeoutError",
    "AdjudgeError",
    "AliasMoved",
    "AsyncClient",
    "AsyncRewardStream",
    "AuthenticationError",
    "BudgetExhausted",
    "Client",
    "ConnectionFailed",
    "Criterion",
    "Forbidden",
    "Group",
    "InProgress",
    "InvalidRequest",
    "JudgingFailed",
    "LengthPenalty",
    "Message",
    "MismatchedAnswer",
    "NotFound",
    "NotReady",
    "Overloaded",
    "OverlongPenalty",
    "Pair",
    "RateLimitError",
    "Response",
    "RewardStream",
    "RubricContent",
    "RubricRefused",
    "RubricRetired",
    "ServerError",
    "TimedOut",
    "Unauthorized",
    "UnknownRubric",
    "WeightsChanged",
    "__version__",
]
