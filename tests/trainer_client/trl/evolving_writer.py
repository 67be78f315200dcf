"""A model behind the OpenAI chat API that writes criteria for evolving rubrics, deterministic per prompt."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.services.writing_model import WritingModel, writing_model

CRITERIA = [{"id": "any", "description": "Says anything."}]


def wrote(prompt: str) -> str:
    """A grade, or two criteria."""
    mark = hashlib.sha256(prompt.encode()).hexdigest()
    if prompt.rstrip().endswith("Answer with one number."):
        return str(int(mark[:2], 16) % 5)
    new = [{"sign": "positive", "description": f"Names the number {mark[n : n + 5]}."} for n in (0, 5)]
    return json.dumps({"criteria": new})


@contextmanager
def evolving_writer() -> Iterator[WritingModel]:
    """The running model; `questions` are the prompts that asked for criteria."""
    with writing_model() as model:

        def said(prompt: str) -> str:
            if "Compare these responses" in prompt:
                model.questions.append(prompt)
            return wrote(prompt)

        made: Any = model
        made.said = said
        yield model
