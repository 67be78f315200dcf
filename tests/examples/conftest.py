"""The examples run against the same service as the judge server's tests."""

from tests.judge_server.conftest import http, serve, store, with_one_document
from tests.judge_server.engines.fixtures import fetched
from tests.trainer_client.trl.conftest import url

__all__ = ["fetched", "http", "serve", "store", "url", "with_one_document"]
