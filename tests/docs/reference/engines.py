"""The options of engine URLs, from the models that read them."""

from typing import Any

from judge_server.engines.llamacpp.engine import LlamaCppOptions
from judge_server.engines.openai.engine import EndpointOptions
from judge_server.engines.scripted import ScriptedOptions
from judge_server.engines.systemone.engine import DecisionOptions
from judge_server.engines.vllm.loading import VllmSettings
from judge_server.ports.urls import UrlOptions
from tests.docs.reference.markdown import entries, sentence, table

ENGINES: dict[str, type[UrlOptions]] = {
    "llamacpp": LlamaCppOptions,
    "vllm": VllmSettings,
    "openai": EndpointOptions,
    "systemone": DecisionOptions,
    "scripted": ScriptedOptions,
}


def engines_page() -> str:
    """A section for each engine, with a table of its options."""
    lines = []
    for scheme, model in ENGINES.items():
        said = entries(model.__doc__)
        rows = []
        for name, field in model.model_fields.items():
            rows.append((f"`{field.alias or name}`", _default(field.default), sentence(said[name])))
        lines += [f"### Options of {scheme}", "", table(("option", "default", "meaning"), rows), ""]
    return "\n".join(lines)


def _default(value: Any) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
