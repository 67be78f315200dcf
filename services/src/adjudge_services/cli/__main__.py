"""Run `adjudge`, also as `python -m adjudge_services.cli`."""

from adjudge_services.cli import lazy
from adjudge_services.cli.main import app


def main() -> None:
    """Run a command, and import what it needs once its options have been read."""
    lazy.OPTIONS_ONLY = True
    app()


if __name__ == "__main__":
    main()
