"""API keys, rate limits and budgets.

The web layer uses `Authenticator`. The package depends on no web framework and no database.
"""

from judge_server.auth.authenticator import Authenticator

__all__ = ["Authenticator"]
