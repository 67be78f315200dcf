"""`python helm/readme.py`: writes the chart's README.md from Chart.yaml, values.yaml and its comments.

As helm-docs does, which is in no package registry: a comment that begins with `# --` describes the value below it. A
value that is described in one component only has that description in all of them.
"""

import json
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "adjudge"

_HEAD = """\
# {name}

{description} Version {version}, for Kubernetes {kubeVersion}; Helm 3.17 or newer, and Helm 4.

```console
helm install adjudge helm/adjudge --namespace judging --values my-values.yaml --wait --timeout 20m
helm test adjudge --namespace judging
```

Without `--values` this is [a trial](../../docs/how-to/try-it-on-kind.md), not for production. For anything else, give
`existingSecret`: [Deploy with Helm](../../docs/how-to/deploy-with-helm.md) says how to push the images and create the
Secret. Sets of values to start from are in `ci/`. Every component takes the values of a pod (`extraEnv`,
`podAnnotations`, `affinity` …). `null` removes a default, as a security context on OpenShift.

This page is made by `helm/readme.py` from `values.yaml`.

## Values

| value | type | default | meaning |
| --- | --- | --- | --- |
"""

_TYPES = {dict: "object", list: "list", str: "string", bool: "bool", int: "int", type(None): "any"}


def readme() -> str:
    """The page."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    rows = "".join(_row(path, value, text) for path, value, text in described_values())
    links = [f"- {maintainer['name']}: <{maintainer['url']}>" for maintainer in chart["maintainers"]]
    sources = [f"- <{source}>" for source in chart["sources"]]
    return (
        _HEAD.format(**chart) + rows + "\n## Maintainers\n\n" + "\n".join(links) + "\n\n## Source\n\n"
        + "\n".join(sources) + "\n"
    )  # fmt: skip


def described_values() -> list[tuple[str, Any, str]]:
    """Each value with a description of its own or of its namesake: path, default, description."""
    source = (CHART / "values.yaml").read_text(encoding="utf-8")
    lines = source.splitlines()
    found: list[tuple[str, Any, str]] = []
    namesakes: dict[str, str] = {}

    def visit(node: yaml.MappingNode, path: str) -> None:
        for key, value in node.value:
            own = _comment_above(lines, key.start_mark.line)
            name = f"{path}{key.value}"
            if own:
                namesakes.setdefault(key.value, own)
            if own is None and isinstance(value, yaml.MappingNode) and value.value:
                visit(value, f"{name}.")
            else:
                found.append((name, yaml.safe_load(yaml.serialize(value)), own or namesakes.get(key.value, "")))

    root = yaml.compose(source)
    assert isinstance(root, yaml.MappingNode)
    visit(root, "")
    return found


def _comment_above(lines: list[str], line: int) -> str | None:
    """The description that ends right above a line."""
    words: list[str] = []
    for above in reversed(lines[:line]):
        text = above.strip()
        if not text.startswith("#"):
            return None
        words.insert(0, text.lstrip("# "))
        if text.startswith("# -- "):
            return " ".join([words[0].removeprefix("-- "), *words[1:]])
    return None


def _row(path: str, value: Any, text: str) -> str:
    default = json.dumps(value, ensure_ascii=False).replace("|", "\\|")
    return f"| `{path}` | {_TYPES[type(value)]} | `{default}` | {text.replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme(), encoding="utf-8")
