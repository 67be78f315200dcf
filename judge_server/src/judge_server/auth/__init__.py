"""API keys, scopes, rate limits and budgets.

The web layer uses `Authenticator`. The package depends on no web framework and no database.
"""

from judge_server.auth.authenticator import Authenticator
from judge_server.auth.keys import ANONYMOUS, Identity, current_identity, identity_context

__all__ = ["ANONYMOUS", "Authenticator", "Identity", "current_identity", "identity_context"]
