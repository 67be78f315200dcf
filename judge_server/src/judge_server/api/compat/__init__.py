"""Routes in the formats of trainers that call a URL for rewards, a module for each trainer.

They translate to a request of `POST /v1/rewards` and back, so keys, limits, fairness, the ledger and fingerprints are
the same. A response that could not be judged never gets a number, unless the URL names a policy that gives it one.
"""

from judge_server.api.compat import openrlhf, roll, slime

routers = (openrlhf.router, slime.router, roll.router)
