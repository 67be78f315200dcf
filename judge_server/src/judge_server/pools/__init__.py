"""Several alike behind one: rendezvous hashing, bounded load, circuit breakers and a health watch."""

from judge_server.pools.breaker import Breaker, BreakerState
from judge_server.pools.member import Member, MemberGone, MemberState, MemberView
from judge_server.pools.pool import Pool
from judge_server.pools.rendezvous import key_of, ranked

__all__ = ["Breaker", "BreakerState", "Member", "MemberGone", "MemberState", "MemberView", "Pool", "key_of", "ranked"]
