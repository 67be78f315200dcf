"""The code of tutorials and how-to pages runs, and prints what the pages show; that of other pages can be parsed."""

from pathlib import Path

import pytest

from tests.docs.code_blocks import LANGUAGES, Block, code_blocks, command_problem, read, syntax_problem
from tests.docs.pages import PAGES, ROOT, name
from tests.docs.running import PageError, is_shown, prepared, run_page

TASKS = [page for page in PAGES if page.parent in (ROOT / "docs/tutorials", ROOT / "docs/how-to")]


NEEDS_TRL = "<!-- needs: trl -->"


@pytest.mark.processes
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name(page), marks=[pytest.mark.trl] * (NEEDS_TRL in page.read_text(encoding="utf-8")))
        for page in TASKS
    ],
)
def test_the_code_of_the_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    blocks = read(page)
    if any(block.is_run for block in blocks):
        with prepared(tmp_path, blocks) as environment:
            run_page(name(page), blocks, tmp_path, environment)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT / "docs"], ids=name)
def test_the_code_of_the_page_can_be_parsed_and_its_commands_have_these_options(page: Path) -> None:
    problems = [f"line {block.line}: {problem}" for block in read(page) if (problem := syntax_problem(block))]
    assert not problems


@pytest.mark.parametrize("page", TASKS, ids=name)
def test_every_block_of_a_task_names_a_known_language(page: Path) -> None:
    assert [(block.line, block.language) for block in read(page) if block.language not in LANGUAGES] == []


def ran(page: str, folder: Path, *, command: bool = False) -> list[Block]:
    """Run the blocks of a page, in the environment of a page if it runs `adjudge`."""
    blocks = code_blocks(page)
    if command:
        with prepared(folder, blocks) as environment:
            run_page("page", blocks, folder, environment)
    else:
        run_page("page", blocks, folder, {"PATH": "/usr/bin:/bin"})
    return blocks


def test_variables_files_and_folders_carry_over_between_blocks_and_to_python(tmp_path: Path) -> None:
    page = """
<!-- run first: mkdir below -->
```bash
cd below
export WHO=you
greet() { echo "hello $WHO"; }
```

<!-- file: below/note.txt -->
```text
written
```

```python
import os
note = open("note.txt").read()
```

1. In a list:

   ```python
   print(os.environ["WHO"], note)
   ```

   It prints:

   ```text
   you ...
   ```

```bash
greet
```
```text
hello you
```
"""
    assert len(ran(page, tmp_path)) == 6


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```bash\necho one\n```\n```text\ntwo\n```\n", "line 2: it prints this:\none"),
        ("```bash\necho warned >&2\n```\n```text\nother\n```\n", "on standard error:\nwarned"),
        ("```python\nprint(1)\n```\n\nIt prints:\n\n```text\n2\n```\n", "the page shows this:\n2"),
        ("```bash\nfalse\necho reached\n```\n", "status 1"),
        ("```bash\nfalse | cat\n```\n", "status 1"),
        ("```python\nraise ValueError('oh')\n```\n", "ValueError: oh"),
        ("```bash\nexit 0\n```\n```bash\nexit 4\n```\n", "line 5: it ended with status 4"),
        ("```bash\necho 'no end\n```\n", "unexpected EOF"),
        ("<!-- exit status: 2 -->\n```bash\ntrue\n```\n", "status 0"),
    ],
)
def test_a_block_that_fails_or_prints_something_else_is_reported(page: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(PageError) as reported:
        ran(page, tmp_path)
    assert complaint in str(reported.value)


def test_a_page_goes_on_after_a_command_that_is_to_fail(tmp_path: Path) -> None:
    page = """
<!-- exit status: 3 -->
```bash
export KEPT=yes
sh -c 'echo refused >&2; exit 3'
```
```text
refused
```

```bash
echo $KEPT
```
```text
yes
```
"""
    ran(page, tmp_path)


def test_a_block_marked_as_not_run_is_not_run(tmp_path: Path) -> None:
    ran("<!-- not run: needs Slurm -->\n```bash\ntouch ran\n```\n```text\nanything\n```\n", tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.processes
def test_commands_and_clients_reach_the_service_of_the_page(tmp_path: Path) -> None:
    page = """
```bash
adjudge score examples/gsm8k.jsonl --limit 1 --rubric examples/gsm8k.rubric.json --mode factual_override --run docs \\
  > scores.jsonl
```

```bash
adjudge runs | cat
```
```text
...docs...
```

```python
from trainer_client import Client

with Client("http://127.0.0.1:8000") as client:
    rubric = {"criteria": [{"id": "c", "description": "The response names Paris."}]}
    answer = client.rewards([{"id": "g", "prompt": "The capital?", "responses": ["Paris", "Lyon"]}], rubric)
    print([one.reward for one in answer.groups[0].responses])
```
```text
[1.0, 0.0]
```
"""
    ran(page, tmp_path, command=True)


@pytest.mark.processes
def test_a_page_may_start_a_service_of_its_own(tmp_path: Path) -> None:
    page = """
```bash
adjudge serve > serve.log 2>&1 &
curl -s --retry 100 --retry-delay 1 --retry-connrefused http://127.0.0.1:8000/healthz
kill %1
wait
```
```text
{...}
```
"""
    ran(page, tmp_path, command=True)


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        (("bash", "adjudge score FILE --no-such-option"), "--no-such-option"),
        (("bash", "docker compose exec api adjudge keys create --nonsense 3"), "--nonsense"),
        (("bash", "KEY=$(adjudge keys create --nonsense)"), "--nonsense"),
        (("bash", "adjudge score FILE \\\n  --mode nonsense  # it's wrong"), "nonsense"),
        (("bash", "adjudge scores FILE"), "no such command"),
        (("bash", "if true; then"), "syntax error"),
        (("json", '{"a": 1,}'), "JSONDecodeError"),
        (("python", "print("), "SyntaxError"),
    ],
)
def test_code_that_cannot_be_right_is_reported(block: tuple[str, str], complaint: str) -> None:
    assert complaint in syntax_problem(Block(*block, 1))


@pytest.mark.parametrize(
    "code",
    [
        "adjudge score FILE --mode stepwise 2> errors.txt | jq .",
        "helm install adjudge ./helm/adjudge --set judge.replicas=2",
        "cat > it.txt <<'END'\nit's adjudge scores\nEND\nadjudge --version",
        "ADJUDGE_PORT=1 adjudge serve --engine 'scripted://hash' &",
    ],
)
def test_commands_that_exist_are_accepted(code: str) -> None:
    assert syntax_problem(Block("bash", code, 1)) == ""


def test_a_group_of_commands_needs_one_of_them() -> None:
    assert command_problem(["rubrics"])
    assert not command_problem(["runs"])


@pytest.mark.parametrize(
    ("output", "expected", "shown"),
    [
        ("a\nb\n", "a\nb", True),
        ("a  \nb\n", "a\nb\n", True),
        ("a\nx\ny\nb\n", "a\n...\nb", True),
        ("a\nb\n", "a\n...\nb", True),
        ("took 1.3 s\n", "took ... s", True),
        ("took 1.3 s\nand more\n", "took ... s", False),
        ("a\nb\n", "a", False),
        ("a.b\n", "a+b", False),
        ("(x)\n", "(x)", True),
    ],
)
def test_three_dots_stand_for_anything(output: str, expected: str, shown: bool) -> None:
    assert is_shown(output, expected) == shown
