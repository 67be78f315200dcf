"""Adjudge's client: rewards for groups of model responses, judged by rubrics.

`Client` and `AsyncClient` call the service. The formulas that client and service share are in `trainer_client.rewards`
and `trainer_client.steps`, the messages in `trainer_client.wire`.
"""

from importlib.metadata import version

from trainer_client.client.answers import AsyncRewardStream
from trainer_client.client.clients import AsyncClient
from trainer_client.client.sync import Client, RewardStream
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
)
from trainer_client.wire import Criterion, Group, LengthPenalty, Message, OverlongPenalty, Pair, Response, RubricContent

__version__ = version("adjudge-client")

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
    "__version__",
]
