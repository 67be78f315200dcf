"""Score one group of responses against a running service. Start it first: `make serve`."""

import time

from trainer_client import Client

criteria = [
    {"id": "method", "kind": "process", "description": "The response divides the distance by the time."},
    {"id": "answer", "kind": "factual", "weight": 3, "description": "The final answer is 80 km/h."},
]
group = {
    "id": "train",
    "prompt": "A train covers 120 km in 1.5 hours. What is its average speed?",
    "responses": ["120 km / 1.5 h = 80 km/h.", "120 * 1.5 = 180, so 180 km/h."],
}
with Client("http://127.0.0.1:8000") as client:
    while not client.ready():
        print("waiting for the service to say: judge ready")
        time.sleep(2)
    answer = client.rewards([group], {"criteria": criteria}, "factual_override")
for response in answer.groups[0].responses:
    failures = [f"{v.criterion}: {v.failure.detail}" for v in response.verdicts if v.failure]
    print(response.reward, failures or [(v.criterion, v.score, v.probability) for v in response.verdicts])
