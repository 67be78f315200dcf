"""Every setting of a process, from `ADJUDGE_…` variables. A laptop needs none of them."""

import secrets
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_path
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.scheduling.admission import QueueRules

Weight = Annotated[float, Field(gt=0)]


class Settings(BaseSettings):
    """Read once, when a process starts."""

    model_config = SettingsConfigDict(env_prefix="ADJUDGE_", extra="ignore", frozen=True, hide_input_in_errors=True)

    data_dir: Path = Field(default=user_data_path("adjudge"), description="Where a laptop keeps its files.")
    database_url: str | None = Field(
        default=None,
        description="sqlite+aiosqlite:///… or postgresql+psycopg://…; a file in data_dir unless set.",
    )
    cache_url: str = Field(default="memory://", description="memory:// or redis://HOST:PORT/DB.")
    engine_url: str = Field(
        default="llamacpp://qwen2.5-coder-1.5b",
        description="llamacpp://MODEL, vllm://MODEL or openai+http://HOST:PORT, each with options of its own.",
    )
    engines: dict[str, str] = Field(
        default_factory=dict, description='Further judges of `adjudge serve`, JSON: {"NAME": "ENGINE URL"}.'
    )
    judges: str | None = Field(
        default=None,
        description='Where `adjudge api` finds its judges: "http://HOST:PORT http://…", or JSON {"NAME": "…"}.',
    )
    judge_token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="What apis show and `adjudge judge` asks for; it listens off loopback only with one.",
    )
    engine_api_key: SecretStr | None = Field(default=None, description="Key of an openai+http(s):// engine.")
    templates_dir: Path | None = Field(default=None, description="A folder of folders of prompt templates, by name.")
    fence_secret: SecretStr | None = Field(
        default=None,
        description="Makes the markers around judged text; equal on all replicas. A file in data_dir unless set.",
    )
    host: str = Field(default="127.0.0.1", description="Where `adjudge serve` listens; keys are needed off loopback.")
    port: int = Field(default=8000, ge=0, le=65535, description="The port it listens on; 0 takes a free one.")
    keys: Literal["loopback", "required"] = Field(
        default="loopback", description="Whether requests need a key on loopback too; elsewhere they always do."
    )
    metrics: Literal["key", "open"] = Field(
        default="key", description="Whether /metrics needs a key with the scope metrics, where keys are needed."
    )
    share_verdicts: bool = Field(
        default=False,
        description="Whether projects share known verdicts, calls in flight and computed prefixes; a hit tells that "
        "another project asked the same.",
    )
    queue_calls: int = Field(default=50_000, ge=1, description="Judge calls that may wait before requests get 429.")
    run_queue_calls: int | None = Field(default=None, ge=1, description="The same for one run; no bound unless set.")
    run_engine_calls: int | None = Field(
        default=None, ge=1, description="Judge calls of one run that may be at the engine; no bound unless set."
    )
    run_weights: dict[str, Weight] = Field(default_factory=dict, description='JSON: {"RUN": 2}; 1 for other runs.')
    bulk_share: float = Field(default=0.1, gt=0, lt=1, description="What bulk work gets while online work waits.")
    engine_batches: int | Literal["auto"] | None = Field(
        default=None,
        description="Responses at the engine at a time; a number, or auto to follow its throughput up to its own.",
    )
    min_choice_mass: float = Field(
        default=MIN_CHOICE_MASS,
        ge=0,
        lt=1,
        description="Probability that the judge must put on its choices together; a verdict from less fails.",
    )
    ledger: Literal["all", "verdicts", "off"] = Field(
        default="all", description="What is recorded of judged requests: all, verdicts without texts, or nothing."
    )
    ledger_spool_bytes: int = Field(
        default=2**30, ge=2**20, description="What may wait in data_dir while the database cannot be written."
    )
    queue_url: str = Field(
        default="memory://",
        description="Where operations wait for workers: memory:// (this process does them) or redis://HOST:PORT/DB.",
    )
    url: str = Field(
        default="http://127.0.0.1:8000", description="The service that `adjudge worker` asks, and clients on this host."
    )
    operation_days: float = Field(
        default=30.0, gt=0, description="Days that an operation and its results are kept after its end."
    )
    chunk_lease_s: float = Field(
        default=60.0, ge=0.5, description="Seconds after which the work of a worker that died is given to another."
    )
    worker_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Where `adjudge worker` answers probes and shows its metrics, on ADJUDGE_HOST; nowhere unless set.",
    )
    writer_url: str | None = Field(
        default=None, description="Engine URL of the model that operations have rubrics written and validated by."
    )
    max_body_bytes: int = Field(default=64 * 2**20, ge=1024, description="Largest request body, in bytes.")
    client_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a caller may take for a request's head, be silent in its body, or read nothing.",
    )
    drain_s: float = Field(
        default=70.0, ge=0, description="Seconds in which a process that is told to stop still answers what was asked."
    )

    log_format: Literal["text", "json"] = Field(
        default="text",
        description="How `adjudge` processes that go on log: lines for people, or JSON, one object a line.",
    )
    log_texts: bool = Field(
        default=False,
        description="Whether exceptions are logged with their messages, which may quote prompts, responses, rubrics.",
    )

    @field_validator("judge_token", mode="before")
    @classmethod
    def _empty_token_to_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("engine_batches")
    @classmethod
    def _check_engine_batches(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, int) and value < 1:
            raise ValueError("give a number of at least 1, or auto")
        return value

    @classmethod
    def with_options(cls, **given: Any) -> "Settings":
        """The settings, with those that a command was given; None stands for one that it was not."""
        return cls().model_copy(update={name: value for name, value in given.items() if value is not None})

    @property
    def queue_rules(self) -> QueueRules:
        """How the judge's queue is bounded and shared."""
        return QueueRules(
            calls=self.queue_calls,
            run_calls=self.run_queue_calls,
            run_at_engine=self.run_engine_calls,
            weights=self.run_weights,
            bulk_share=self.bulk_share,
            batches=self.engine_batches,
        )

    @property
    def store_url(self) -> str:
        """The database in force."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / 'adjudge.db'}"

    @property
    def ledger_spool(self) -> Path:
        """The folder of the ledger's spool."""
        return self.data_dir / "ledger-spool"

    def fencing_secret(self) -> bytes:
        """The secret in force; without one set, a random one is kept in `data_dir`, readable by its owner only."""
        if self.fence_secret is not None:
            return self.fence_secret.get_secret_value().encode()
        file = self.data_dir / "fence-secret"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            temporary = self.data_dir / f"fence-secret.{secrets.token_hex(8)}"
            temporary.touch(mode=0o600)
            temporary.write_text(secrets.token_hex(32) + "\n")
            with suppress(FileExistsError):
                file.hardlink_to(temporary)  # whole or not at all, and of several starting at once the first wins
            temporary.unlink()
        return file.read_text().strip().encode()
