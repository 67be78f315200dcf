"""Recording of judged requests in the ledger, in the background.

A request passes its verdicts to the recorder and does not wait. One thread turns them into rows and writes these to a
spool on disk, five times a second; another moves them to the database, in order. If the process is killed, only rows
that are not yet in the spool are lost; if the database cannot be reached, nothing is lost until the spool is full.
"""

from judge_server.ledger.recorder import Recorder, RecorderLimits, RecorderTimes
from judge_server.scoring.planner import JudgedRequest, RecordSink

__all__ = ["JudgedRequest", "RecordSink", "Recorder", "RecorderLimits", "RecorderTimes"]
