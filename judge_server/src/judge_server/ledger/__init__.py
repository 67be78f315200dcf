"""Recording: from judged requests to rows of the ledger, off the request's path.

A request hands over what it judged and goes on. A thread turns that into rows and puts them into a spool on disk, five
times a second; another takes them from there to the database, in order. So a kill costs what is not yet in the
spool, and a database that is away costs nothing until the spool is full.
"""

from judge_server.ledger.recorder import Recorder
from judge_server.scoring.planner import JudgedRequest, RecordSink

__all__ = ["JudgedRequest", "RecordSink", "Recorder"]
