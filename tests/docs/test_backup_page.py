"""`docs/backup.md` shows existing commands with valid options."""

import re

from typer.testing import CliRunner

from adjudge_services.cli.main import app
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/backup.md"


def test_every_command_of_the_page_exists_and_accepts_its_options() -> None:
    shown = re.findall(r"^(?:\w+=\S+ )?adjudge (.+)$", "".join(blocks(PAGE, "console")), re.MULTILINE)
    assert len(shown) >= 3
    for line in shown:
        words = line.split()
        names = [word for word in words if re.fullmatch(r"[a-z]+", word)]
        helped = CliRunner().invoke(app, [*names, "--help"])
        assert helped.exit_code == 0, line
        assert all(word in helped.stdout for word in words if word.startswith("--")), line
