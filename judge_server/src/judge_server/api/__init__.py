"""The HTTP face of the service: `/v1`, health, and problems. No rule of judging lives here."""

from judge_server.api.app import create_app
from judge_server.api.service import Service

__all__ = ["Service", "create_app"]
