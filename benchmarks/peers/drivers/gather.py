"""The loop that many trainers write by hand: gathered openai calls under a semaphore, with a search for yes.

With `shape` `plain`, any reply other than yes is a no, and an error ends the run; with `careful`, neither gives a
score. `order` is the position of the criterion: `last`, so that an engine can reuse the text before it, or `first`.
"""

from openai import AsyncOpenAI, OpenAIError

from benchmarks.peers.driving import DriverConfig, Score, SingleCallDriver, WorksheetJudge, drive, failed

SYSTEM = "You grade responses. Answer with one word: yes or no."


def make(setting: DriverConfig) -> WorksheetJudge:
    """Create the judge: one client for all calls, with the timeout and the SDK's default of two retries."""
    client = AsyncOpenAI(base_url=setting.url, api_key="none", timeout=setting.timeout_s)
    careful = setting.options["shape"] == "careful"
    last = setting.options["order"] == "last"

    async def ask(question: str, response: str, criterion: str) -> Score:
        texts = f"Task:\n{question}\n\nResponse:\n{response}"
        criterion_text = f"Criterion: {criterion}"
        content = f"{texts}\n\n{criterion_text}" if last else f"{criterion_text}\n\n{texts}"
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
        reply = (completion.choices[0].message.content or "").strip().lower()
        if careful and not reply.startswith(("yes", "no")):
            return "unreadable"
        return float(reply.startswith("yes"))

    return SingleCallDriver(setting, ask)


if __name__ == "__main__":
    drive(make)
