"""The judge fingerprint and the call digest: what must be equal for two verdicts to be the same measurement."""

import hashlib
import json
from dataclasses import asdict

from judge_server.judging.calibration import NEUTRAL, UNSCALED, Calibration, ProbabilityMap
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.ports import AnswerForm, Batch, Call, EngineIdentity, LabelChoice, TextOutput, TokenChoice
from rubric_store.byte_cache import ByteCache
from trainer_client.wire import RATIONALE_TOKENS


def judge_fingerprint(
    identity: EngineIdentity,
    template_digests: tuple[str, ...],
    config: JudgingConfig,
    calibration: Calibration = NEUTRAL,
    min_choice_mass: float = MIN_CHOICE_MASS,
) -> str:
    """Hash the model, weights, engine build, chat template, decoding, prompt templates, configuration and calibration.

    A calibration enters with its numbers only, and a neutral one adds nothing. `min_choice_mass` enters if
    probabilities are read.
    """
    parts = asdict(identity)
    del parts["concurrent_batches"], parts["context_tokens"]  # capacity: no verdict depends on it
    del parts["asks"]  # the digest of the weights tells a probe from its judge
    if not identity.capabilities.typed_questions:  # added later: every other judge keeps its fingerprint
        del parts["capabilities"]["typed_questions"]
    if not identity.capabilities.images:
        del parts["capabilities"]["images"]
    asked = config.recorded()
    del asked["template"]  # the digest is included; the name may be reused for other texts
    if config.protocol in ("graded", "likert"):
        asked["grade"] = "expected"  # once the most likely grade: do not mix cached verdicts
    if identity.capabilities.logprobs and config.protocol != "checklist":
        asked["min_choice_mass"] = min_choice_mass
    whole = [parts, template_digests, asked, RATIONALE_TOKENS if config.rationale else 0]
    if calibration.numbers:
        whole.append(calibration.numbers)
    canonical = json.dumps(whole, sort_keys=True)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


class CallDigests:
    """Digests of calls about one shared text: hash(fingerprint, rendered prompt, answer form), 32 bytes each.

    Everything that the calls of `batch` share enters, its `cache_salt` included; its calls do not.
    """

    def __init__(self, fingerprint: str, batch: Batch) -> None:
        self._start = hashlib.sha256(f"{fingerprint}\0{batch.system}\0{batch.shared}\0".encode())
        if batch.cache_salt:
            self._start.update(b"\0salt" + hashlib.sha256(batch.cache_salt.encode()).digest())
        for image in batch.images:
            self._start.update(b"\0image" + hashlib.sha256(image.encode()).digest())

    def of(self, call: Call, verdicts: int = 1, scaling: ProbabilityMap = UNSCALED) -> tuple[bytes, ...]:
        """Return one digest per verdict of a call; equal prompts with equal answer forms have equal digests.

        The scaling enters too, because criteria of two kinds may be asked in the same words.
        """
        return self.with_ending(call, ending_of(call, scaling), verdicts)

    def with_ending(self, call: Call, ending: bytes, verdicts: int = 1) -> tuple[bytes, ...]:
        """Like `of`, with the result of `ending_of` computed beforehand for a call asked about many texts."""
        digest = self._start.copy()
        digest.update(call.question.encode())
        digest.update(ending)
        whole = digest.digest()
        if verdicts == 1:
            return (whole,)
        return tuple([hashlib.sha256(whole + n.to_bytes(4, "big")).digest() for n in range(verdicts)])


def ending_of(call: Call, scaling: ProbabilityMap = UNSCALED) -> bytes:
    """Return the part of a call's digest after its question: answer form, reasoning, sampling and scaling."""
    ending = _form(call.answer)
    if call.reasoning is not None or call.think_tokens or call.sample is not None:
        ending += repr((call.reasoning, call.think_tokens, call.sample)).encode()
    if scaling != UNSCALED:
        ending += ("\0scaled" + "".join([f"\0{number!r}" for number in scaling.numbers])).encode()
    return ending


_FORMS: ByteCache[AnswerForm, bytes] = ByteCache(8 * 2**20)


def _form(answer: AnswerForm) -> bytes:
    return _FORMS.get_or_create(answer, lambda: _make_form(answer))


def _make_form(answer: AnswerForm) -> bytes:
    if isinstance(answer, TokenChoice):
        then = () if answer.then is None else ("then", answer.then.lead, answer.then.ask, *answer.then.labels)
        described = tuple(option.description for option in answer.options)
        parts: tuple[str, ...] = ("menu", *(option.label for option in answer.options), *then)
        if any(described):
            parts += ("described", *described)
        if answer.lead:
            parts += ("lead", answer.lead)
    elif isinstance(answer, LabelChoice):
        parts = ("choice", answer.lead, answer.ask, *answer.labels)
    elif isinstance(answer, TextOutput):
        parts = ("prose", str(answer.max_tokens))
    else:
        parts = ("written", str(answer.max_tokens), answer.schema)
    return ("\0" + "\0".join(parts)).encode()
