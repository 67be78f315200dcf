"""The HTTP API of the service: `/v1`, health and problems. It contains no judging rules."""

from judge_server.api.app import create_app
from judge_server.api.service import Service

__all__ = ["Service", "create_app"]
