"""`adjudge models` on the command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from adjudge_services.cli.main import app
from judge_server.models.catalogue import CATALOGUE
from tests.judge_server.models.fake_hub import CONTENT, DIGEST, HUB_PATH, Site

RUN = CliRunner()
ADDRESS = "hf://someone/tiny-GGUF/tiny.gguf"


def test_pull_prints_only_the_path_to_standard_output_and_the_rest_to_standard_error(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    site.headers[HUB_PATH] = {"ETag": f'"{DIGEST}"'}
    result = RUN.invoke(app, ["models", "pull", ADDRESS])
    assert result.exit_code == 0
    assert result.stdout == f"{cache / 'hf/someone/tiny-GGUF/tiny.gguf'}\n"
    assert "Hugging Face hub" in result.stderr
    assert len(result.stderr.splitlines()) < 5


def test_pull_accepts_a_local_file_as_it_is(site: Site, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(CONTENT)
    result = RUN.invoke(app, ["models", "pull", str(mine)])
    assert (result.exit_code, result.stdout) == (0, f"{mine}\n")


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("missing.gguf", "does not exist"),
        (__file__, "is not a GGUF model"),
        ("gpt-9", "No model is called 'gpt-9'"),
        (ADDRESS, "has no such file"),
    ],
)
def test_a_failed_pull_prints_one_message_and_exits_with_1(site: Site, reference: str, complaint: str) -> None:
    result = RUN.invoke(app, ["models", "pull", reference])
    assert (result.exit_code, result.stdout) == (1, "")
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_list_distinguishes_present_partial_corrupt_and_absent_models(site: Site, cache: Path) -> None:
    cache.mkdir(parents=True)
    with (cache / (CATALOGUE[0].file + ".part")).open("wb") as begun:
        begun.truncate(CATALOGUE[0].size // 2)
    (cache / CATALOGUE[1].file).write_bytes(b"GGUF")
    site.files[HUB_PATH] = CONTENT
    RUN.invoke(app, ["models", "pull", ADDRESS])
    lines = RUN.invoke(app, ["models", "list"]).stdout.splitlines()
    for line, words in zip(
        lines[1:5],
        (
            ("qwen2.5-coder-1.5b", "1.12 GB", "partial 50 %", "the default judge"),
            ("qwen2.5-coder-0.5b", "491 MB", "corrupt"),
            ("smollm2-135m", "98 MB", "absent", "its verdicts are noise"),
            (ADDRESS, "present", "unverified"),
        ),
        strict=True,
    ):
        assert all(word in line for word in words), line


def test_list_with_check_finds_changed_bytes_of_the_right_size(site: Site, cache: Path) -> None:
    site.files[HUB_PATH] = CONTENT
    path = Path(RUN.invoke(app, ["models", "pull", ADDRESS]).stdout.strip())
    path.write_bytes(CONTENT[:-1] + b"!")
    assert "present" in RUN.invoke(app, ["models", "list"]).stdout
    assert "corrupt" in RUN.invoke(app, ["models", "list", "--check"]).stdout


def test_path_prints_only_the_path_of_a_cached_model(site: Site, cache: Path) -> None:
    absent = RUN.invoke(app, ["models", "path", "smollm2-135m"])
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert "adjudge models pull smollm2-135m" in absent.stderr
    cache.mkdir(parents=True)
    with (cache / CATALOGUE[2].file).open("wb") as file:
        file.truncate(CATALOGUE[2].size)
    here = RUN.invoke(app, ["models", "path", "smollm2-135m"])
    assert (here.exit_code, here.stdout) == (0, f"{cache / CATALOGUE[2].file}\n")
