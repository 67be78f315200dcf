"""An OpenAI-compatible chat server on loopback that writes for the toy generator and records the questions."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.judge_server.generation.toy import good

CRITERIA = "Criteria for: "


class WritingModel:
    """The running server. `questions` lists the requests for criteria; each answer first waits for `pause`."""

    def __init__(self, answer: Callable[[str], str] = good) -> None:
        self.answer = answer
        self.questions: list[str] = []
        self.pause: Callable[[], None] = lambda: None
        self.down = False
        self.url = ""

    def said(self, prompt: str) -> str:
        """Return the answer to a prompt."""
        if not prompt.startswith(CRITERIA):
            return "It is so."
        question = prompt.removeprefix(CRITERIA)
        self.questions.append(question)
        self.pause()
        return self.answer(question)


@contextmanager
def writing_model(answer: Callable[[str], str] = good) -> Iterator[WritingModel]:
    """Run a model that gives these answers, for the duration of the block."""
    model = WritingModel(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._send(200 if self.path == "/v1/models" else 404, {"data": [{"id": "writer", "max_model_len": 4096}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/chat/completions":
                self._send(404, {"detail": "Not Found"})
            elif model.down:
                self._send(500, {"error": {"message": "the model is gone"}})
            else:
                message = {"role": "assistant", "content": model.said(body["messages"][-1]["content"])}
                usage = {"prompt_tokens": 20, "completion_tokens": 30}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self._send(200, {"model": "writer", "choices": [choice], "usage": usage})

        def _send(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except ConnectionError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"openai+http://127.0.0.1:{server.server_port}/v1?concurrency=2"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
