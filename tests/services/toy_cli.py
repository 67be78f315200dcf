"""`adjudge` with the toy generator added: `python -m tests.services.toy_cli`."""

from adjudge_services.cli.main import app
from judge_server.generation.kinds import GENERATORS
from tests.judge_server.generation.toy import ToyGenerator

if __name__ == "__main__":
    GENERATORS[ToyGenerator.kind] = ToyGenerator
    app()
