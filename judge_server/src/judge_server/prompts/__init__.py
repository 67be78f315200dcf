"""The judge's prompts: versioned templates of our own, rendered in two parts.

The shared part (everything about a response) comes first and the criterion last, so that an engine which reuses
prefixes reads a response once for all its criteria. The templates' digest is part of the judge fingerprint.
"""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from judge_server.prompts.fencing import neutralise
from trainer_client.wire import Criterion, Group, Protocol

TEMPLATE_VERSION = "1"


class PromptTemplates:
    """The templates of one protocol, compiled once. `fence` wraps every judged text."""

    def __init__(self, protocol: Protocol, fence: Callable[[str], str]) -> None:
        folder = files(__name__) / "templates" / f"v{TEMPLATE_VERSION}"
        names = (f"{protocol}.system.j2", "shared.j2", "question.j2")
        sources = [(folder / name).read_text(encoding="utf-8") for name in names]
        self.digest = hashlib.sha256("\0".join(sources).encode()).hexdigest()
        # Prompts are plain text for a model: HTML escaping would corrupt them.
        environment = Environment(undefined=StrictUndefined, autoescape=False, trim_blocks=True)  # noqa: S701
        environment.filters["fence"] = fence
        environment.filters["neutral"] = neutralise
        system, self._shared, self._question = (environment.from_string(s) for s in sources)
        self.system = system.render()
        self.question = lru_cache(maxsize=8192)(self._render_question)

    def shared(self, group: Group, response: str, *, show_final_answer: bool, final_answer: str | None) -> str:
        """The part about one response: prompt, what only the judge sees, the response, and its final answer.

        What the responses of a group have in common comes first, so that it too is read once.
        """
        return self._shared.render(
            group=group, response=response, show_final_answer=show_final_answer, final_answer=final_answer
        )

    def _render_question(self, criterion: Criterion) -> str:
        return self._question.render(criterion=criterion)
