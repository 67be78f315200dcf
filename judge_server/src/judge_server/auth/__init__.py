"""Who may call, what they may do, and how much of it: keys, scopes, rates and budgets.

`Authenticator` is what the web layer asks. Knows no HTTP beyond the words of the header `Authorization`, and no database.
"""

from judge_server.auth.authenticator import Authenticator
from judge_server.auth.identity import ANONYMOUS, Identity, current_identity, identity_context

__all__ = ["ANONYMOUS", "Authenticator", "Identity", "current_identity", "identity_context"]
