"""Judges in other processes: the api's executor and client for them, and the application they serve."""

from judge_server.remote.executor import RemoteExecutor
from judge_server.remote.link import JudgeClient
from judge_server.remote.serving import JudgeProcess, create_judge_app

__all__ = ["JudgeClient", "JudgeProcess", "RemoteExecutor", "create_judge_app"]
