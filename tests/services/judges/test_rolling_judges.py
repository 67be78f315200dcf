"""A rolling upgrade of judges, seen from an api: it ignores judges of another protocol, and waits for its own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from judge_server.remote.messages import PROTOCOL_VERSION
from tests.fixtures.ports import unused_port
from tests.fixtures.waiting import wait_until
from tests.services.processes import Service, get, listening
from trainer_client import Client

pytestmark = [pytest.mark.faults, pytest.mark.slow]

GROUP = {"id": "g", "prompt": "p", "responses": ["x"]}
RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}]}


@contextmanager
def judge_of_a_newer_protocol(port: int) -> Iterator[None]:
    """Run a server that answers like a judge with messages unknown to this version."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"protocol": PROTOCOL_VERSION + 1, "says": ["something", "else"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def says_why(api: Service) -> bool:
    """Whether it reports that it is not ready and waits for judges of its own version."""
    answer = get(api, "/readyz")
    assert api.process.poll() is None, "".join(api.said)
    protocols = f"every judge speaks protocol {PROTOCOL_VERSION + 1} and this api {PROTOCOL_VERSION}"
    said = f"{protocols}; it waits for judges of its own version"
    return answer.status_code == 503 and said in answer.json()["detail"]


def test_an_api_survives_judges_of_another_protocol_and_judges_again_with_its_own(tmp_path: Path) -> None:
    port = unused_port()
    judge = ("judge", "--port", str(port), "--engine", "scripted://yes")
    url = ("--judge", f"http://127.0.0.1:{port}")
    with (
        listening("api", "--port", "0", *url, ADJUDGE_DATA_DIR=str(tmp_path / "api")) as api,
        Client(api.url) as client,
    ):
        for number in range(2):
            with judge_of_a_newer_protocol(port):
                wait_until(lambda: says_why(api))
            with listening(*judge, ADJUDGE_DATA_DIR=str(tmp_path / f"judge-{number}")):
                api.wait_until_ready(client)
                answer = client.rewards([GROUP], RUBRIC)
                assert [response.reward for response in answer.groups[0].responses] == [1.0]
        assert f"speaks protocol {PROTOCOL_VERSION + 1} and this api {PROTOCOL_VERSION}" in "".join(api.said)
