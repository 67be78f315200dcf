"""Ports: what judging needs from outside, each a small Protocol, and the plain values that cross.

Adapters live elsewhere: engines in `judge_server.engines`, caches in `judge_server.cache`, and the rubric store in a
package of its own that this one must not import. `adjudge_services` connects them.
"""

from judge_server.ports.engine import (
    MASS_TOLERANCE,
    AnswerForm,
    Batch,
    Call,
    CallFailure,
    Capabilities,
    Engine,
    EngineIdentity,
    JsonOutput,
    LabelChoice,
    Option,
    Reasoning,
    Reply,
    SamplingOptions,
    TextOutput,
    TokenChoice,
)
from judge_server.ports.operations import ChunkQueue, OperationStore, UnknownOperation
from judge_server.ports.stores import (
    ApiKeyStore,
    AuditTrail,
    IdempotencyKeys,
    JudgeResult,
    Ledger,
    LedgerReader,
    RateLimiter,
    RubricSource,
    RubricValidations,
    RunReader,
    VerdictCache,
)
from trainer_client.wire.operations import Operation, OperationKind, OperationProgress, OperationState, ResultPage

__all__ = [
    "MASS_TOLERANCE",
    "AnswerForm",
    "ApiKeyStore",
    "AuditTrail",
    "Batch",
    "Call",
    "CallFailure",
    "Capabilities",
    "ChunkQueue",
    "Engine",
    "EngineIdentity",
    "IdempotencyKeys",
    "JsonOutput",
    "JudgeResult",
    "LabelChoice",
    "Ledger",
    "LedgerReader",
    "Operation",
    "OperationKind",
    "OperationProgress",
    "OperationState",
    "OperationStore",
    "Option",
    "RateLimiter",
    "Reasoning",
    "Reply",
    "ResultPage",
    "RubricSource",
    "RubricValidations",
    "RunReader",
    "SamplingOptions",
    "TextOutput",
    "TokenChoice",
    "UnknownOperation",
    "VerdictCache",
]
