"""Long-running operations behind the `Operations` port: their handlers, and adapters that run them."""

from judge_server.operations.in_process import InProcessOperations
from judge_server.ports.operations import Job, JobContext, JobFailed

__all__ = ["InProcessOperations", "Job", "JobContext", "JobFailed"]
