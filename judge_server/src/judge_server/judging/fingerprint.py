"""The judge fingerprint and the call digest: what must be equal for two verdicts to be the same measurement."""

import hashlib
import json
from dataclasses import asdict

from judge_server.ports import Call, EngineIdentity
from trainer_client.wire import Protocol


def judge_fingerprint(identity: EngineIdentity, template_digest: str, protocol: Protocol) -> str:
    """Hash of model, weights, engine build, chat template, decoding, our templates and the protocol."""
    parts = asdict(identity)
    del parts["concurrent_batches"], parts["context_tokens"]  # capacity, which no verdict depends on
    canonical = json.dumps([parts, template_digest, protocol], sort_keys=True)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


class CallDigests:
    """Digests of the calls about one shared text: hash(fingerprint, rendered prompt, menu), 32 bytes each."""

    def __init__(self, fingerprint: str, system: str, shared: str) -> None:
        self._start = hashlib.sha256(f"{fingerprint}\0{system}\0{shared}\0".encode())

    def of(self, call: Call) -> bytes:
        """The digest of one call; equal prompts with equal menus have equal digests."""
        digest = self._start.copy()
        digest.update(call.question.encode())
        for option in call.menu:
            digest.update(b"\0" + option.label.encode())
        if call.then is not None:
            digest.update(("\1" + call.then.lead + "\0".join(call.then.labels)).encode())
        return digest.digest()
