"""Run `adjudge` as `python -m adjudge_services.cli`."""

from adjudge_services.cli.main import app

app()
