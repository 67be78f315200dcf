"""What many trainers write by hand: openai calls under a semaphore, gathered, and a yes looked for in each reply.

`shape` is `plain`, where anything but a yes is a no and an error ends the run, or `careful`, where neither is a score.
`order` is where the criterion stands: `last`, so that an engine can reuse all that comes before it, or `first`.
"""

from openai import AsyncOpenAI, OpenAIError

from benchmarks.peers.driving import DriverConfig, EachCall, Score, WorksheetJudge, drive, failed

SYSTEM = "You grade responses. Answer with one word: yes or no."


def make(setting: DriverConfig) -> WorksheetJudge:
    """One client for all calls, with the timeout and the two retries that the SDK makes unless told otherwise."""
    client = AsyncOpenAI(base_url=setting.url, api_key="none", timeout=setting.timeout_s)
    careful = setting.options["shape"] == "careful"
    last = setting.options["order"] == "last"

    async def ask(question: str, response: str, criterion: str) -> Score:
        texts = f"Task:\n{question}\n\nResponse:\n{response}"
        asked = f"Criterion: {criterion}"
        content = f"{texts}\n\n{asked}" if last else f"{asked}\n\n{texts}"
        try:
            completion = await client.chat.completions.create(
                model=setting.model,
                messages=[
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": f"{content}\n\nDoes the response satisfy the criterion? Yes or no?"},
                ],
                temperature=0,
                max_tokens=1,
            )
        except OpenAIError as error:
            if careful:
                return failed(error)
            raise
        said = (completion.choices[0].message.content or "").strip().lower()
        if careful and not said.startswith(("yes", "no")):
            return "unreadable"
        return float(said.startswith("yes"))

    return EachCall(setting, ask)


if __name__ == "__main__":
    drive(make)
