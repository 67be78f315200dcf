"""The golden schema of the messages between an api and a judge: the protocol, fields, types and defaults.

`python -m tests.judge_server.remote.golden_messages`, from the root folder, regenerates it.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from judge_server.ports import Batch
from judge_server.remote.messages import PROTOCOL_VERSION, Handshake, ResultEvent, ShardRequest, TokenCount
from judge_server.scheduling.sleep import Lease, SleepReport

GOLDEN = Path(__file__).parents[1] / "golden/remote.json"
COMMAND = "python -m tests.judge_server.remote.golden_messages"


def protocol_schema() -> dict[str, Any]:
    """The protocol version, and the schema of each message without its descriptions."""
    messages = (Handshake, ShardRequest, ResultEvent, TokenCount, Batch, Lease, SleepReport)
    return {
        "protocol": PROTOCOL_VERSION,
        "messages": {m.__name__: _bare(TypeAdapter(m).json_schema()) for m in messages},
    }


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _bare(each) for key, each in schema.items() if not (key == "description" and isinstance(each, str))}


def as_text(document: dict[str, Any]) -> str:
    """The schema as the text of the golden file."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(as_text(protocol_schema()), encoding="utf-8")
