"""Scores one response by one criterion and says what came back; fails where no reward did."""

import os
import sys

from trainer_client import Client

CRITERION = {"id": "answer", "description": "The response says that two and two are four.", "weight": 1}
GROUP = {"id": "helm-test", "prompt": "What are two and two?", "responses": ["Two and two are four."]}

with Client(os.environ["ADJUDGE_URL"], run="helm-test", api_key=os.environ["ADJUDGE_API_KEY"]) as client:
    answer = client.rewards(groups=[GROUP], rubric={"criteria": [CRITERION]}, mode="weighted_mean")
(response,) = answer.groups[0].responses
print(f"status {response.status}, reward {response.reward}")
sys.exit(response.reward is None)
