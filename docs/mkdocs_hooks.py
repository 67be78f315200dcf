"""Hooks of mkdocs: pages for linked files outside `docs/`, the HTTP reference, redirects, and `llms.txt`.

A page of `docs/` may link to a file of the repository, as a forge shows it. The site holds a copy of each such file: a
Markdown file as it is, any other as a code block. A link that leads nowhere stays one, and fails the strict build.
Addresses of pages that were moved lead to the new ones. `llms.txt` lists the pages for language models
(https://llmstxt.org), and a Markdown file of each stands beside its page.
"""

import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OPENAPI = ROOT / ".cache/openapi.json"  # written by `make docs`
OPENAPI_MARK = "<!-- openapi -->"
MOVED = ROOT / "docs/reference/moved.md"

_CODE = re.compile(r"^(```|~~~).*?^\1[ ]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<head>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_MOVED_PAGE = re.compile(r"^\| `(?P<old>[\w/-]+\.md)` \| \[[^\]]+\]\(\.\./(?P<new>[^)]+)\) \|$", re.MULTILINE)
_FILE = re.compile(r"^(?P<indent>[ ]*)<!-- file: (?P<name>[^\n]+?) -->\n+[ ]*(?P<fence>```\w+)$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".json": "json", ".jsonl": "json", ".yaml": "yaml", ".toml": "toml", ".sbatch": "bash"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Redirect from each page that `MOVED` lists to the one that has its subject now."""
    moved = {row["old"]: row["new"] for row in _MOVED_PAGE.finditer(MOVED.read_text(encoding="utf-8"))}
    config.plugins["redirects"].config["redirect_maps"] = moved
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside `docs/` that a page links to, and for those that they link to."""
    known = {file.src_uri for file in files}
    unread = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    while unread:
        page, text = unread.pop()
        if not page.endswith(".md"):
            continue
        for linked in _linked_files(page, text):
            uri = _uri(linked)
            if uri in known or not (ROOT / linked).is_file():
                continue
            known.add(uri)
            content = (ROOT / linked).read_text(encoding="utf-8")
            files.append(File.generated(config, uri, content=_as_page(linked, content)))
            unread.append((linked, content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links into the repository into links of the site, and fill in the HTTP reference."""
    uri = page.file.src_uri
    source = uri if page.file.generated_by else f"docs/{uri}"
    if uri.startswith(("how-to/", "tutorials/")):  # who searches wants to do something
        page.meta.setdefault("search", {})["boost"] = 2
    if uri == "reference/http-api.md":
        markdown = markdown.replace(OPENAPI_MARK, openapi_page(json.loads(OPENAPI.read_text(encoding="utf-8"))))
    elif page.file.generated_by and not (ROOT / uri).exists():
        page.meta["search"] = {"exclude": True}  # the page that links to it is what a reader looks for
        return markdown  # a code block

    markdown = _FILE.sub(r'\g<indent>\g<fence> title="\g<name>"', markdown)  # the comment is for the tests

    def site_link(link: re.Match[str]) -> str:
        target = posixpath.relpath(_uri(_resolve(source, link["path"])), posixpath.dirname(uri) or ".")
        return f"{link['head']}{target}{link['anchor'] or ''})"

    return "".join(text if is_code else _LINK.sub(site_link, text) for is_code, text in _split_code(markdown))


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keep the navigation, which `on_post_build` is not given."""
    config.extra["navigation"] = nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`, and the Markdown of each page that it lists."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.extra["navigation"]:
        if isinstance(section, Section):
            lines += [f"## {section.title}", ""]
            for page in _pages(section):
                (site / page.file.src_uri).write_text(page.markdown or "", encoding="utf-8")
                description = page.meta.get("description")
                title = html.unescape(str(page.title))
                lines.append(f"- [{title}]({page.file.src_uri})" + (f": {description}" if description else ""))
            lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _pages(section: Section) -> Iterator[Page]:
    for item in section.children:
        if isinstance(item, Section):
            yield from _pages(item)
        elif isinstance(item, Page):
            yield item


def _split_code(markdown: str) -> Iterator[tuple[bool, str]]:
    end = 0
    for code in _CODE.finditer(markdown):
        # A link whose text is code stands around it: leave such code to the text.
        if markdown[code.end() : code.end() + 2] == "](" or markdown[code.start() - 1 : code.start()] == "[":
            continue
        yield False, markdown[end : code.start()]
        yield True, code[0]
        end = code.end()
    yield False, markdown[end:]


def _linked_files(page: str, markdown: str) -> Iterator[str]:
    for is_code, text in _split_code(markdown):
        if not is_code:
            for link in _LINK.finditer(text):
                yield _resolve(page, link["path"])


def _resolve(page: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path))


def _uri(path: str) -> str:
    """A file's place in the site, from its path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def _as_page(path: str, content: str) -> str:
    if path.endswith(".md"):
        return content
    language = _LANGUAGES.get(posixpath.splitext(path)[1], "text")
    return f"# {posixpath.basename(path)}\n\n`{path}`\n\n~~~{language}\n{content.rstrip()}\n~~~\n"


def openapi_page(document: dict[str, Any]) -> str:
    """Render an OpenAPI document as Markdown: a section for each address, then one for each message."""
    lines = []
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).extend(_operation(method, path, operation))
    for tag, sections in by_tag.items():
        lines += [f"## {tag.capitalize()}", "", *sections]
    lines += ["## Messages", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _message(name, schema)
    return "\n".join(lines)


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    lines = [f"### {method.upper()} {path}", "", operation["summary"] + ".", "", operation.get("description", ""), ""]
    if parameters := operation.get("parameters"):
        lines += ["| parameter | in | type | meaning |", "| --- | --- | --- | --- |"]
        for item in parameters:
            name = f"`{item['name']}`" + (" (required)" if item.get("required") else "")
            lines.append(f"| {name} | {item['in']} | {_type(item['schema'])} | {_cell(item.get('description', ''))} |")
        lines.append("")
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"Body (`{kind}`): {_type(content.get('schema', {}))}", ""]
    lines += ["| status | meaning | body |", "| --- | --- | --- |"]
    for status, answer in sorted(operation["responses"].items()):
        bodies = [f"`{kind}`: {_type(body.get('schema', {}))}" for kind, body in answer.get("content", {}).items()]
        lines.append(f"| {status} | {_cell(answer['description'])} | {'<br>'.join(bodies)} |")
    return [*lines, ""]


def _message(name: str, schema: dict[str, Any]) -> list[str]:
    lines = [f"### {name} {{#{_anchor(name)}}}", "", schema.get("description", ""), ""]
    if "properties" not in schema:
        return [*lines, _type(schema), ""]
    required = schema.get("required", ())
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for field, value in schema["properties"].items():
        default = f"`{json.dumps(value['default'])}`" if "default" in value else "required" * (field in required)
        lines.append(f"| `{field}` | {_type(value)} | {_cell(default)} | {_cell(value.get('description', ''))} |")
    return [*lines, ""]


def _type(schema: dict[str, Any]) -> str:
    """A schema's type in a few words, with links to the messages it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_type(option) for option in schema[choice]))
    if "allOf" in schema:
        return " and ".join(_type(part) for part in schema["allOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}{_bounds(schema, 'minItems', 'maxItems')}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return (
        f"{schema.get('type', 'any')}{_bounds(schema, 'minimum', 'maximum')}{_bounds(schema, 'minLength', 'maxLength')}"
    )


def _bounds(schema: dict[str, Any], least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most)
    if low is None and high is None:
        return ""
    if low is None:
        return f" (at most {high:,})"
    return f" (from {low:,})" if high is None else f" ({low:,} to {high:,})"


def _anchor(name: str) -> str:
    return "message-" + re.sub(r"\W+", "-", name).lower()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
