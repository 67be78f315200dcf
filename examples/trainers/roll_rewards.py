"""A reward worker for ROLL that asks Adjudge, and fails instead of counting a missing reward as 0."""

import os

from roll.distributed.scheduler.decorator import Dispatch, register
from roll.pipeline.rlvr.rewards import remote_reward_system_worker as roll_worker

URL = "http://judge:8000/v1/compat/roll"


class RubricHandler(roll_worker.RewardSystemHandler):
    def get_reward(self, **task):
        for _ in range(5):
            score, parts = super().get_reward(**task)
            if isinstance(score, float):
                return score, parts
            if score is not None:  # why judging failed
                break
        raise RuntimeError(f"rollout {task['rollout_id']} has no reward: {score or 'see the log'}")


roll_worker.RewardSystemHandler = RubricHandler


class RubricRewardWorker(roll_worker.RemoteRewardSystemWorker):
    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    def compute_rewards(self, data):
        data.meta_info["reward_system_config"] = {
            "submit_url": f"{URL}/submit_task?run=roll-1&rubric=math/short@1",
            "get_result_url": f"{URL}/task_result",
            "xrl_authorization": os.environ["ADJUDGE_API_KEY"],
        }
        return super().compute_rewards(data)
