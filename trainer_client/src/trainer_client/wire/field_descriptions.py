"""The descriptions of fields in JSON Schema and OpenAPI, read from the docstrings of their models.

A model describes its fields under `Attributes:` in its docstring, and inherits the descriptions of its base classes.
Fields that mean the same in all messages are described here. Models import this module when a schema is made, so that
a client that sends and receives messages does not pay for it.
"""

import inspect
import re
from functools import cache
from typing import Any

SHARED_FIELDS = {
    "action": "What was done, such as `alias.move`.",
    "actor": "Who did it: a key by its id, or the command line.",
    "aliases": "By alias, the version that it points to.",
    "allow_retired": "Accept a rubric version that is retired; otherwise the request is refused.",
    "at": "When it happened.",
    "cached": "Whether it needed no call of its own: it was in the cache, or another request made the call.",
    "calibration": "The map from raw to calibrated probabilities; null if there is none.",
    "characters_omitted": "How many characters of the response the judge did not see.",
    "choice_mass": "The share of the judge's total probability that fell on the allowed answers.",
    "created_at": "When it was created.",
    "criteria_count": "The number of its criteria.",
    "criterion": "The criterion's id.",
    "deadline_s": "The time that the service has, in seconds; verdicts that are not ready by then fail.",
    "digest": "`sha256:` and the hash of the criteria. Equal criteria have equal digests.",
    "ended_at": "When it ended; null until then.",
    "expires_at": "When it stops to be valid; null for never.",
    "failure": "Why judging failed; null if it did not.",
    "fingerprint": "`sha256:` and the hash of everything about the judge that can change its verdicts.",
    "first_step": "The first step that is included; null for no limit.",
    "grounding": "A text that the response must agree with, such as a source; only the judge sees it.",
    "grounding_characters": "The maximum length of the grounding shown to the judge, in characters; all by default.",
    "grounding_characters_omitted": "How many characters of the grounding the judge did not see.",
    "group": "The group's id.",
    "groups": "The groups of responses.",
    "judge": "The name of the judge; each judge of the service has one.",
    "judge_calls": "Calls that the judge processed, retries included.",
    "judging": "How the judge is asked.",
    "kind": "The kind, which says what the other fields mean.",
    "label": "A name for people to recognise it by.",
    "last_step": "The last step that is included; null for no limit.",
    "last_used_at": "When it was last used, to the minute; null if never.",
    "limits": "What the project may use.",
    "lineage": "Who or what made the version; null if it is not known.",
    "metadata": "The JSON object that the version was published with.",
    "mode": "The formula of the reward.",
    "model": "The name of the judge's model.",
    "name": "The name.",
    "next_cursor": "Send it as `after` to get the next page; null on the last page.",
    "on_failure": "What reward a response gets if judging fails.",
    "on_uncertain": "What reward a response gets whose reward needs a verdict that is uncertain.",
    "parent": "The version of the same name that this one was made from.",
    "partial": "Responses with a reward in spite of failed or uncertain verdicts.",
    "policy_applied": "The policy that determined the reward; null if none did.",
    "priority": "`online` if a training step waits; `bulk` work waits until online requests are served.",
    "probability": "The calibrated probability of yes; null if there is none.",
    "project_id": "The project that it belongs to.",
    "prompt": "What the responses answer: a text, or the messages of a conversation.",
    "prompt_tokens_computed": "Prompt tokens that the judge computed.",
    "prompt_tokens_reused": "Prompt tokens that the judge took from its prefix cache.",
    "protocol": "The judging protocol: how the judge is asked and answers.",
    "rationale": "What the judge wrote before its verdict; null if it was not asked for reasons.",
    "reason": "Why, in a sentence.",
    "reasoning": "Which part of a response the judge sees: without its thinking block, all of it, or only that block.",
    "reference_answer": "A right answer, to compare with; only the judge sees it.",
    "request_id": "The id of the request, which logs and problems name too.",
    "requests": "The number of requests.",
    "responses": "The responses, in the order of the request.",
    "retirement": "When and why the version was retired; null if it is in use.",
    "revoked_at": "When it was revoked; null if it is not.",
    "reward": "The reward; null if there is none.",
    "rubric": "The rubric: a reference, its digest, or its criteria.",
    "rubrics": "The rubrics that were used.",
    "run": "The name of the training run; null if there is none.",
    "score": "The score, in [0, 1]; null if there is none.",
    "scopes": "What the key may do.",
    "scored": "Responses whose criteria all have a verdict.",
    "started_at": "When it started; null until then.",
    "state": "The state that it is in.",
    "status": "The outcome.",
    "step": "The training step, from 0; null if there is none.",
    "steps": "The steps of the response, each with what its verdicts add to it.",
    "suspicious": "Whether the judge said that the response meets a decoy criterion; null if none was asked.",
    "tags": "Keywords to find it by.",
    "template": "The name of a set of prompt templates; the server's default set by default.",
    "text": "The text.",
    "think_tokens": "The maximum length of a thinking judge's thoughts, in its tokens.",
    "tokens_written": "Tokens that the judge generated.",
    "uncertain": "Verdicts whose probability lay in the uncertain band.",
    "uncertain_band": "A verdict is uncertain if its calibrated probability is from the first up to the second.",
    "unscored": "Responses whose verdicts give no reward.",
    "usage": "What it cost.",
    "verdicts": "The verdicts, one for each criterion.",
    "version": "The version's number, from 1.",
}
"""The descriptions of fields that mean the same in every message that has them."""

_SECTION = re.compile(r"^Attributes:\n((?:    .*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w[\w, ]*): ((?:.|\n(?=        ))*)", re.MULTILINE)


def describe(model: type, schema: dict[str, Any]) -> None:
    """Add the descriptions of its fields to the JSON Schema of a model, and remove them from that of the model."""
    if model.__doc__ is not None:
        schema["description"] = _SECTION.sub("", f"{inspect.cleandoc(model.__doc__)}\n").strip()
    own = field_descriptions(model)
    for name, field in schema.get("properties", {}).items():
        description = own.get(name) or SHARED_FIELDS.get(name)
        if description is not None:
            field.setdefault("description", description)


@cache
def field_descriptions(model: type) -> dict[str, str]:
    """The descriptions in the docstrings of a model and of its base classes, by field."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        section = _SECTION.search(f"{inspect.cleandoc(base.__dict__.get('__doc__') or '')}\n")
        for names, text in _ENTRY.findall(section[1] if section else ""):
            sentence = " ".join(text.split())
            found |= dict.fromkeys(re.split(r",\s*", names), sentence[:1].upper() + sentence[1:])
    return found
