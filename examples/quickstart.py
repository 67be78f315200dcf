"""Score two responses. Run `make serve` first, and wait until it says: judge ready."""

from trainer_client import Client

criteria = [
    {"id": "method", "kind": "process", "description": "The response divides the distance by the time."},
    {"id": "answer", "kind": "factual", "weight": 3, "description": "The final answer is 80 km/h."},
]
responses = ["120 km / 1.5 h = 80 km/h.", "120 * 1.5 = 180, so 180 km/h."]
group = {
    "id": "train",
    "prompt": "A train covers 120 km in 1.5 hours. What is its average speed?",
    "responses": responses,
}
with Client("http://127.0.0.1:8000") as client:
    answer = client.rewards([group], criteria, "factual_override")
for one in answer.groups[0].responses:
    print(one.reward, {v.criterion: v.failure.detail if v.failure else v.probability for v in one.verdicts})
