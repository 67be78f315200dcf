"""`python -m adjudge_services.cli` is `adjudge`."""

from adjudge_services.cli.main import app

app()
