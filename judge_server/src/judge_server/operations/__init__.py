"""Long work behind the `Operations` port: what can be run, and the adapter that runs it in this process."""

from judge_server.operations.in_process import InProcessOperations
from judge_server.ports.operations import Job, JobContext, JobFailed

__all__ = ["InProcessOperations", "Job", "JobContext", "JobFailed"]
