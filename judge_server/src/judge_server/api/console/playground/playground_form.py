"""The form of the playground, the scoring request that it makes, and that request as code to copy."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pprint import pformat
from typing import Any

from pydantic import ValidationError

from judge_server.api.console.forms import Form
from judge_server.errors import InvalidRequest, invalid_request
from judge_server.ports import RubricTexts
from trainer_client.wire import DEFAULT_JUDGE, FieldError, RewardRequest
from trainer_client.wire.problems import field_errors

RUN = "playground"
"""The run under which the playground's requests are recorded."""

_GROUP = "playground"
_MAX_RUBRIC_CHARACTERS = 256 * 1024
_DEADLINE_S = 60.0
_MATERIAL = ("ground_truth", "reference_answer", "grounding")


@dataclass(frozen=True, slots=True)
class PlaygroundForm:
    """What was filled in. A rubric that was written takes the place of one that was picked."""

    prompt: str = ""
    responses: Sequence[str] = ("", "")
    rubric: str = ""
    rubric_text: str = ""
    mode: str = "weighted_mean"
    protocol: str = ""
    judge: str = DEFAULT_JUDGE
    on_failure: str = "null"
    rationale: bool = False
    soft: bool = False
    deadline_s: str = "60"
    material: dict[str, str] = field(default_factory=lambda: dict.fromkeys(_MATERIAL, ""))

    @classmethod
    def read(cls, form: Form) -> "PlaygroundForm":
        """The submitted form; responses that were left empty do not count."""
        responses = [text for text in form.texts("response") if text.strip()]
        chosen = {name: form.text(name).strip() for name in ("rubric", "mode", "protocol", "judge", "on_failure")}
        return cls(
            prompt=form.text("prompt"),
            responses=responses or [""],
            rubric_text=form.text("rubric_text") if form.text("rubric_text").strip() else "",
            rationale=bool(form.text("rationale")),
            soft=bool(form.text("soft")),
            deadline_s=form.text("deadline_s").strip() or "60",
            material={name: form.text(name) for name in _MATERIAL},
            **{name: value for name, value in chosen.items() if value},
        )

    def request(self, texts: RubricTexts | None) -> RewardRequest:
        """The scoring request. Reading a rubric may take a while: call it in a thread.

        Raises:
            InvalidRequest: a field is missing or cannot be used; the errors name it.
        """
        if not any(text.strip() for text in self.responses):
            raise _invalid("response", "write at least one response")
        prompt, responses = self._conversation()
        group: dict[str, Any] = {"id": _GROUP, "prompt": prompt, "responses": responses}
        group |= {name: text for name, text in self.material.items() if text.strip()}
        judging = {"protocol": self.protocol or None, "rationale": self.rationale or None}
        chosen: dict[str, Any] = {
            "rubric": self._rubric(texts) or None,
            "judging": {name: value for name, value in judging.items() if value} or None,
            "judge": self.judge if self.judge != DEFAULT_JUDGE else None,
            "on_failure": self.on_failure if self.on_failure != "null" else None,
            "deadline_s": deadline if (deadline := _number("deadline_s", self.deadline_s)) != _DEADLINE_S else None,
        }
        reward = {"mode": self.mode} | ({"use": "probability"} if self.soft else {})
        fields = {"run": RUN, "reward": reward, "groups": [group]}
        fields |= {name: value for name, value in chosen.items() if value is not None}
        try:
            return RewardRequest.model_validate(fields)
        except ValidationError as error:
            raise invalid_request(field_errors(error.errors())) from None

    def _conversation(self) -> tuple[Any, list[Any]]:
        """The prompt and the responses, each as text or messages.

        Without a prompt, a response that is a whole conversation is divided at the policy's last turn.
        """
        responses = [_text_or_messages(text) for text in self.responses if text.strip()]
        if self.prompt.strip():
            return _text_or_messages(self.prompt), responses
        if len(responses) == 1 and isinstance(responses[0], list):
            messages = responses[0]
            ends = [n for n, one in enumerate(messages) if one.get("role") not in ("assistant", "tool")]
            if ends and ends[-1] + 1 < len(messages):
                return messages[: ends[-1] + 1], [messages[ends[-1] + 1 :]]
        raise _invalid("prompt", "write the prompt, or paste a whole conversation as the only response")

    def _rubric(self, texts: RubricTexts | None) -> str | dict[str, Any]:
        if not self.rubric_text:
            return self.rubric
        if len(self.rubric_text) > _MAX_RUBRIC_CHARACTERS:
            raise _invalid("rubric_text", f"at most {_MAX_RUBRIC_CHARACTERS:,} characters are allowed")
        if texts is None:
            raise _invalid("rubric_text", "this process reads no rubric files; name a published rubric instead")
        try:
            (read,) = texts.read(self.rubric_text.encode(), "rubric.yaml")
        except ValueError as error:
            raise _invalid("rubric_text", str(error)) from None
        return read.document.content.model_dump(mode="json", exclude_unset=True)


def _text_or_messages(text: str) -> Any:
    """The messages of a conversation if the text is JSON of some, otherwise the text."""
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if value and isinstance(value, list) and all(isinstance(one, dict) and "role" in one for one in value):
            return value
    return text


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _invalid(name, f"{text[:40]!r} is not a number, such as 60") from None


def _invalid(name: str, message: str) -> InvalidRequest:
    return invalid_request((FieldError(field=name, message=message),))


@dataclass(frozen=True, slots=True)
class Snippet:
    """The request in a language to copy."""

    title: str
    code: str


def snippets(request: RewardRequest, base_url: str) -> tuple[Snippet, ...]:
    """A request for curl, for the Python client, and as the reward of a trainer of TRL."""
    body = request.model_dump(mode="json", exclude_unset=True, exclude={"run"})
    code = json.dumps(body, indent=2, ensure_ascii=False)
    (group,) = body["groups"]
    rubric, mode = body.get("rubric"), body["reward"].pop("mode")
    options = body["reward"] | body.get("judging", {})
    options |= {name: body[name] for name in ("judge", "on_failure", "deadline_s") if name in body}
    keywords = "".join(f", {name}={value!r}" for name, value in options.items())
    row = {name: value for name, value in group.items() if name not in ("id", "responses")}
    return (
        Snippet(
            "curl",
            f"curl -s {base_url}/v1/rewards -H 'Content-Type: application/json' \\\n"
            f"  -H \"Authorization: Bearer $ADJUDGE_API_KEY\" -d @- <<'JSON'\n{code}\nJSON\n",
        ),
        Snippet(
            "Python",
            f"from trainer_client import Client\n\n"
            f"group = {_literal(group)}\n"
            f"rubric = {_literal(rubric)}\n"
            f'with Client("{base_url}") as client:\n'
            f"    answer = client.rewards([group], rubric, {mode!r}{keywords})\n"
            "for response in answer.groups[0].responses:\n"
            "    print(response.reward, [(verdict.criterion, verdict.score) for verdict in response.verdicts])\n",
        ),
        Snippet(
            "TRL",
            "from datasets import Dataset\n"
            "from trl import GRPOConfig, GRPOTrainer\n"
            "from trainer_client.trl import RubricReward\n\n"
            f"rubric = {_literal(rubric)}\n"
            f'reward = RubricReward("{base_url}", rubric, mode={mode!r}{keywords})\n'
            f"dataset = Dataset.from_list([{_literal(row)}])\n"
            "trainer = GRPOTrainer(\n"
            '    model="Qwen/Qwen2.5-1.5B-Instruct",\n'
            "    reward_funcs=reward,\n"
            '    args=GRPOConfig("out"),\n'
            "    train_dataset=dataset,\n"
            ")\n"
            "trainer.train()\n",
        ),
    )


def _literal(value: Any) -> str:
    return pformat(value, width=100, sort_dicts=False)
