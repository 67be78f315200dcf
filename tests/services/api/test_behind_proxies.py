"""The service behind nginx and haproxy, which keep connections open: an error in one request affects no other.

Skipped where a proxy is not installed; `.ci/run` installs both.
"""

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fixtures.ports import unused_port
from tests.services.processes import listening

pytestmark = pytest.mark.processes

MOST_BYTES = 65536
REQUEST: dict[str, Any] = {
    "rubric": {"criteria": [{"id": "a", "description": "Is it?"}, {"id": "b", "description": "Is it not?"}]},
    "groups": [{"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes.", "No.", "Perhaps."]}],
}
NGINX = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/errors;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream adjudge {{ server {upstream}; keepalive 1; }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 0;
    proxy_request_buffering {buffering};
    location / {{
      proxy_pass http://adjudge;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
    }}
  }}
}}
"""


HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  http-reuse always
  {buffering}
frontend all
  bind 127.0.0.1:{port}
  default_backend adjudge
backend adjudge
  server one {upstream}
"""
PROXIES = {
    "nginx, whole bodies": ("nginx", NGINX, "on"),
    "nginx, as they come": ("nginx", NGINX, "off"),
    "haproxy": ("haproxy", HAPROXY, "option http-buffer-request"),
}


@pytest.fixture(scope="module", params=list(PROXIES))
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy in front of a service; it forwards bodies when they are complete, or as they arrive."""
    name, configuration, buffering = PROXIES[request.param]
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"needs {name}: apt-get install {name}")
    folder: Path = tmp_path_factory.mktemp(name)
    options = {"ADJUDGE_DATA_DIR": str(folder / "data"), "ADJUDGE_MAX_BODY_BYTES": str(MOST_BYTES)}
    with listening("serve", "--port", "0", "--engine", "scripted://hash", **options) as service:
        port = unused_port()
        file = folder / f"{name}.conf"
        upstream = service.url.removeprefix("http://")
        file.write_text(configuration.format(folder=folder, upstream=upstream, port=port, buffering=buffering))
        arguments = ["-f", file, "-db"] if name == "haproxy" else ["-p", folder, "-e", folder / "errors", "-c", file]
        process = subprocess.Popen([program, *arguments])
        try:
            url = f"http://127.0.0.1:{port}"
            transport = httpx2.HTTPTransport(retries=20)
            with httpx2.Client(transport=transport, timeout=30) as client:
                assert client.get(f"{url}/healthz").status_code == 200
            yield url
        finally:
            process.terminate()
            process.wait(30)


def rewards(url: str) -> list[float]:
    """Return the rewards of an honest request."""
    answer = httpx2.post(f"{url}/v1/rewards", json=REQUEST, timeout=30)
    assert answer.status_code == 200, answer.text
    return [response["reward"] for response in answer.json()["groups"][0]["responses"]]


def raw(url: str, sent: bytes) -> bytes:
    """Send bytes; return the answer up to the close."""
    host, port = url.removeprefix("http://").split(":")
    read = b""
    address, reset = (host, int(port)), contextlib.suppress(BrokenPipeError, ConnectionResetError)
    with socket.create_connection(address, timeout=30) as connection, reset:
        connection.sendall(sent)
        while piece := connection.recv(65536):
            read += piece
    return read


def test_rewards_pass_through_whole_and_as_lines(proxied: str) -> None:
    expected = rewards(proxied)
    lined = {"Accept": "application/x-ndjson"}
    with httpx2.stream("POST", f"{proxied}/v1/rewards", json=REQUEST, headers=lined, timeout=30) as answer:
        assert answer.status_code == 200
        lines = [json.loads(line) for line in answer.iter_lines()]
    (group,) = [line["group"] for line in lines if line.get("group")]
    assert [response["reward"] for response in group["responses"]] == expected


HEAD = b"POST /v1/rewards HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (HEAD + b"Content-Length: %d\r\n\r\n" % (4 * MOST_BYTES) + b" " * 4 * MOST_BYTES, {413}),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"4000\r\n%s\r\n" % (b" " * 0x4000) * 16 + b"0\r\n\r\n", {413}),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Request-Id: trailer\r\n\r\n", {422}),
        (
            HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n",
            {400, 422},
        ),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", {400}),
        (HEAD.replace(b"/v1/rewards", b"/v1/rubrics/a%00b") + b"Content-Length: 0\r\n\r\n", {400, 422}),
        (HEAD + b"Content-Length: 9\r\n\r\n{}", {400, 408, 422}),
    ],
    ids=["too large", "too many chunks", "trailer", "two lengths", "no chunk", "nul", "cut short"],
)
def test_a_refused_request_affects_no_other_on_the_proxys_kept_connection(
    proxied: str, sent: bytes, statuses: set[int]
) -> None:
    expected = rewards(proxied)
    host, port = proxied.removeprefix("http://").split(":")
    if sent.endswith(b"9\r\n\r\n{}"):  # hang up in the middle
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(sent)
    else:
        said = raw(proxied, sent)
        assert not said or int(said.split(b" ", 2)[1]) in statuses, said[:200]
        assert b"smuggled" not in said
        assert b"trailer" not in said
    for _ in range(3):
        assert rewards(proxied) == expected
