"""Several alike behind one: rendezvous hashing, bounded load, circuit breakers and a health watch."""

from judge_server.pools.breaker import BreakerState, CircuitBreaker
from judge_server.pools.member import Member, MemberState, MemberUnavailable, MemberView
from judge_server.pools.pool import Pool
from judge_server.pools.rendezvous import key_of, ranked

__all__ = [
    "BreakerState",
    "CircuitBreaker",
    "Member",
    "MemberState",
    "MemberUnavailable",
    "MemberView",
    "Pool",
    "key_of",
    "ranked",
]
