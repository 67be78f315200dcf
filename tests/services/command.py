"""The command `adjudge`, run in this process."""

from typing import Any

from typer.testing import CliRunner, Result

from adjudge_services.cli.main import app


def adjudge(*arguments: object, exit_code: int | None = None, **options: Any) -> Result:
    """Run a command; a crash fails the test, and so does another exit status than `exit_code`."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], **options)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert exit_code in (None, result.exit_code), result.output
    return result


def failure_of(result: Result) -> str:
    """Check that a command failed, and return what it said on standard error in one line.

    Where its options are wrong, it has shown its usage and its status is 2; else its status is 1.
    """
    assert result.exit_code == (2 if result.stderr.startswith("Usage: ") else 1), result.output
    return " ".join(result.stderr.replace("│", " ").split())


def outcome(*arguments: object) -> tuple[int, str]:
    """Run a command; return its exit status and all that it printed."""
    result = adjudge(*arguments)
    return result.exit_code, result.output
