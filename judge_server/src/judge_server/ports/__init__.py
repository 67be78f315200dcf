"""What judging needs from outside itself, each as a small Protocol, and the plain values that cross.

Adapters live elsewhere: engines in `judge_server.engines`, caches in `judge_server.cache`, the rubric store in a
package of its own that this one must not import. `services` plugs them together.
"""

from judge_server.ports.engine import (
    MASS_ROUNDING,
    AnswerForm,
    Batch,
    Call,
    CallFailed,
    Capabilities,
    Choice,
    Engine,
    EngineIdentity,
    Menu,
    Option,
    Prose,
    Reasoning,
    Reply,
    Sample,
    Written,
)
from judge_server.ports.idempotency import IdempotencyKeys
from judge_server.ports.ledger import Ledger, LedgerReader, RunReader
from judge_server.ports.operations import (
    ChunkQueue,
    Operation,
    OperationKind,
    OperationProgress,
    Operations,
    OperationState,
    OperationStore,
    ResultPage,
    UnknownOperation,
)
from judge_server.ports.rates import Rates
from judge_server.ports.rubrics import RubricSource
from judge_server.ports.tenants import AuditTrail, KeyRing
from judge_server.ports.validations import RubricValidations
from judge_server.ports.verdicts import Finding, VerdictCache

__all__ = [
    "MASS_ROUNDING",
    "AnswerForm",
    "AuditTrail",
    "Batch",
    "Call",
    "CallFailed",
    "Capabilities",
    "Choice",
    "ChunkQueue",
    "Engine",
    "EngineIdentity",
    "Finding",
    "IdempotencyKeys",
    "KeyRing",
    "Ledger",
    "LedgerReader",
    "Menu",
    "Operation",
    "OperationKind",
    "OperationProgress",
    "OperationState",
    "OperationStore",
    "Operations",
    "Option",
    "Prose",
    "Rates",
    "Reasoning",
    "Reply",
    "ResultPage",
    "RubricSource",
    "RubricValidations",
    "RunReader",
    "Sample",
    "UnknownOperation",
    "VerdictCache",
    "Written",
]
