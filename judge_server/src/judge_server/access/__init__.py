"""Who may call, what they may do, and how much of it: keys, scopes, rates and budgets.

`Gate` is what the web layer asks. Knows no HTTP beyond the words of the header `Authorization`, and no database.
"""

from judge_server.access.gate import Gate
from judge_server.access.identity import KEYLESS, Identity, acting, acting_for

__all__ = ["KEYLESS", "Gate", "Identity", "acting", "acting_for"]
