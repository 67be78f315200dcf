"""The settings of a process, read from `ADJUDGE_…` variables. A laptop needs none of them."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from platformdirs import user_data_path
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettings

from judge_server.judging.replies import MIN_CHOICE_MASS
from trainer_client.documentation import setting_url
from trainer_client.wire.judges import RestingState
from trainer_client.wire.monitors import MonitorThresholds

if TYPE_CHECKING:
    from judge_server.scheduling.admission import QueueRules

Weight = Annotated[float, Field(gt=0)]

Reference = Annotated[str, Field(min_length=1)]
"""A stored version: NAME, NAME@VERSION or NAME@ALIAS."""


class CombinedJudgeSettings(BaseModel):
    """A cascade or a panel of judges by name.

    Attributes:
        cascade: the small judge and the large one.
        band: where the large judge is asked: two probabilities, or a stored band.
        panel: two or more judges.
        weights: one for each judge of the panel; equal by default.
        dawid_skene: stored error rates of the panel's judges, instead of weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cascade: tuple[str, str] | None = None
    band: tuple[float, float] | Reference | None = None
    panel: Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    weights: tuple[Weight, ...] | None = None
    dawid_skene: Reference | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the judges."""
        return self.cascade or self.panel or ()

    @property
    def reference(self) -> str | None:
        """The stored version that it needs, if any."""
        return self.band if isinstance(self.band, str) else self.dawid_skene

    @model_validator(mode="after")
    def _one_kind(self) -> "CombinedJudgeSettings":
        if (self.cascade is None) == (self.panel is None):
            raise ValueError('write either "cascade": [SMALL, LARGE] or "panel": [NAME, NAME, …]')
        if len(set(self.members)) < len(self.members):
            raise ValueError("name each judge once")
        if self.cascade is not None:
            if self.band is None or self.weights is not None or self.dawid_skene is not None:
                raise ValueError('a cascade needs "band", as in [0.2, 0.8] or "NAME@ALIAS", and nothing else')
            if not isinstance(self.band, str) and not 0 <= self.band[0] <= self.band[1] <= 1:
                raise ValueError("the two numbers of a band must rise and lie between 0 and 1")
        if self.panel is not None:
            if self.band is not None or (self.weights is not None and self.dawid_skene is not None):
                raise ValueError('a panel takes "weights" or "dawid_skene", not both, and no "band"')
            if self.weights is not None and len(self.weights) != len(self.panel):
                raise ValueError(f"give {len(self.panel)} weights, one for each judge of the panel")
        return self


class SettingsError(ValueError):
    """Settings that cannot be used; the message names each, what is wrong with it, and what to write.

    Attributes:
        documentation_url: the address of the documentation about the first of them.
    """

    def __init__(self, message: str, variable: str) -> None:
        super().__init__(message)
        self.documentation_url = setting_url(variable)


class Settings(BaseSettings):
    """The settings of a process, read once when it starts."""

    model_config = SettingsConfigDict(
        env_prefix="ADJUDGE_", extra="ignore", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    data_dir: Path = user_data_path("adjudge")
    """Folder of local files: the SQLite database, the secret, the ledger's spool. The default is the user's data
    folder, ~/.local/share/adjudge on Linux."""
    database_password: SecretStr | None = None
    """Password in ADJUDGE_DATABASE_URL, for a URL without one, as it is, without percent-encoding."""
    database_url: str | None = None
    """The database: sqlite+aiosqlite:///… or postgresql://…; by default a SQLite file, adjudge.db, in data_dir."""
    cache_password: SecretStr | None = None
    """Password in ADJUDGE_CACHE_URL, for a URL without one, as it is, without percent-encoding."""
    cache_url: str = "memory://"
    """The verdict cache: memory:// or redis://HOST:PORT/DB. rediss:// and unix:// work too. Options: ?timeout_s=1."""
    engine_url: str = "llamacpp://qwen2.5-coder-1.5b"
    """Engine of the judge: llamacpp://MODEL, vllm://MODEL, openai+http://HOST:PORT or systemone+http://…. Several
    URLs, separated by spaces, form a pool."""
    engines: dict[str, str | CombinedJudgeSettings] = Field(default_factory=dict)
    """More judges of `adjudge serve`, as JSON: {"NAME": "ENGINE URL"}, cascades and panels included: {"NAME":
    {"cascade": ["SMALL", "LARGE"], "band": "VERSION"}}."""
    judges: str | None = None
    """Judge processes of `adjudge api`: "http://HOST:PORT http://…", or JSON {"NAME": "…"}, where a cascade or panel
    is written as in ADJUDGE_ENGINES."""
    calibrations: str | None = None
    """Stored calibrations that judges apply: "NAME@ALIAS NAME@VERSION …", or JSON {"JUDGE": "…"}."""
    judge_token: SecretStr | None = Field(default=None, min_length=16)
    """Token that an api sends to its judges, and that a judge requires; needed to listen on an address other than
    loopback."""
    engine_api_key: SecretStr | None = None
    """API key for openai+http(s):// and systemone+http(s):// engines and for `adjudge measure --embeddings`. Other
    engines do not use it. Do not put a key in a URL: URLs are displayed and logged."""
    adapters_dir: Path | None = None
    """Folder of LoRA adapters that judges in this process may load while they run; without it, none."""
    templates_dir: Path | None = None
    """Folder of template sets, one folder per set."""
    signing_secret: SecretStr | None = Field(default=None, min_length=16)
    """Secret that signs the tokens of workers and the sessions of the console, equal on all replicas; by default a
    file in data_dir."""
    host: str = "127.0.0.1"
    """Address to listen on; on any address other than loopback, every request needs a key."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    keys: Literal["loopback", "required"] = "loopback"
    """required: requests need a key on loopback too."""
    bootstrap_key: SecretStr | None = None
    """First API key, with every scope, which `adjudge migrate` stores: adj_ID_SECRET, with 16 characters of a-z and
    2-7, and 43 of A-Z, a-z, 0-9, '-' and '_'."""
    metrics: Literal["key", "open"] = "key"
    """key: where keys are required, /metrics needs one with scope metrics. open: it never does."""
    share_verdicts: bool = False
    """Whether projects share cached verdicts, calls in flight and prefixes; a hit then reveals that another project
    asked the same."""
    queue_calls: int = Field(default=50_000, ge=1)
    """Judge calls that may be queued before requests get 429: about a minute's work of a fast judge. If it is higher,
    the last calls in the queue miss their deadline. If it is lower, bursts are refused."""
    run_queue_calls: int | None = Field(default=None, ge=1)
    """Judge calls of one run that may be queued; unlimited by default."""
    run_engine_calls: int | None = Field(default=None, ge=1)
    """Judge calls of one run that may be at the engine; unlimited by default."""
    run_weights: dict[str, Weight] = Field(default_factory=dict)
    """Shares of runs, as JSON: {"RUN": 2}; other runs have 1."""
    bulk_share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the engine's tokens for bulk work while online work waits. Bulk work always progresses, and training
    slows down only slightly."""
    engine_batches: int | Literal["auto"] | None = None
    """Responses at the engine at a time: a number, or auto to adapt up to the engine's limit."""
    resting_state: RestingState = "awake"
    """Whether judges in this process are awake or asleep while nobody holds a lease on them: awake or asleep."""
    min_choice_mass: float = Field(default=MIN_CHOICE_MASS, ge=0, lt=1)
    """Total probability that the judge must give the answer choices, from 0 to below 1; below it a verdict fails. The
    shipped judges give genuine questions 0.5 and more. If it is higher, a judge that words its answers differently
    fails. At 0, a verdict may rest on no evidence. It is part of the judge's fingerprint: set it to the same value on
    all apis."""
    ledger: Literal["all", "verdicts", "off"] = "all"
    """What to record of judged requests: all, verdicts (without texts), or off."""
    monitors: MonitorThresholds = MonitorThresholds()
    """Thresholds of the monitors of runs, as JSON: {"window_steps": 60, "z": 5}."""
    tracker_url: str | None = None
    """Address of a run in W&B, MLflow or another tracker, with {run} for its name; the page of a run links to it."""
    ledger_spool_bytes: int = Field(default=2**30, ge=2**20)
    """Bytes of ledger rows that may wait in data_dir while the database cannot be written: some hours of a busy run.
    If it is larger than the volume, the disk fills up."""
    queue_password: SecretStr | None = None
    """Password in ADJUDGE_QUEUE_URL, for a URL without one, as it is, without percent-encoding."""
    queue_url: str = "memory://"
    """Queue of operations: memory:// (this process runs them) or redis://HOST:PORT/DB (workers do)."""
    url: str = "http://127.0.0.1:8000"
    """Address of the service, for `adjudge worker` and for commands."""
    operation_days: float = Field(default=30.0, gt=0)
    """Days to keep an operation and its results after its end."""
    chunk_lease_s: float = Field(default=60.0, ge=0.5)
    """Seconds after which the chunks of a dead worker go to another. A worker renews its lease three times within it.
    If it is too short, workers that are alive lose chunks when the database hangs. If it is too long, the chunks of a
    killed worker wait."""
    worker_port: int | None = Field(default=None, ge=0, le=65535)
    """Port on ADJUDGE_HOST for the probes and metrics of `adjudge worker`; none by default."""
    writer_url: str | None = None
    """Engine URL of the model with which operations generate and validate rubrics."""
    max_body_bytes: int = Field(default=64 * 2**20, ge=1024)
    """Largest request body, in bytes. A step of 512 long responses needs a tenth of the default. A higher limit costs
    memory for every concurrent request."""
    client_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a client may take to send a request's head, pause within its body, or leave an answer unread. A
    lower value breaks slow links. A higher one lets idle clients hold connections."""
    drain_s: float = Field(default=70.0, ge=0)
    """Seconds that a stopping process continues to answer requests in progress: a default deadline and a margin. Then
    it cuts off the rest and closes its own connections. A supervisor must wait this long plus 14 seconds for gold
    judges and the ledger, or it kills the process before it has closed its stores. To wait longer, raise both."""

    log_format: Literal["text", "json"] = "text"
    """Log format of long-running processes: text, or json with one object per line."""
    log_texts: bool = False
    """Whether to log exception messages, which may quote prompts, responses and rubrics."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            causes = list(_causes(error))
            first = _variable(str(causes[0]["loc"][0])) if causes and causes[0]["loc"] else ""
            raise SettingsError("; ".join(map(_describe, causes)), first) from None
        except UnreadableSettings as error:  # a setting that is JSON
            name = str(error).partition('"')[2].partition('"')[0]
            variable = _variable(name)
            raise SettingsError(f"{variable} is not JSON: {error.__cause__ or error}", variable) from None

    @field_validator("judge_token", "bootstrap_key", mode="before")
    @classmethod
    def _empty_secret_to_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("database_url", "cache_url", "queue_url")
    @classmethod
    def _add_password(cls, url: str | None, info: ValidationInfo) -> str | None:
        password: SecretStr | None = info.data.get((info.field_name or "").replace("_url", "_password"))
        if url is None or not password:
            return url
        parts = urlsplit(url)
        if parts.hostname is None or parts.password is not None:
            return url
        user, _, address = parts.netloc.rpartition("@")
        quoted = quote(password.get_secret_value(), safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{quoted}@{address}"))

    @field_validator("engine_batches")
    @classmethod
    def _check_engine_batches(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, int) and value < 1:
            raise ValueError("set a number of at least 1, or auto")
        return value

    @field_validator("tracker_url")
    @classmethod
    def _check_tracker_url(cls, value: str | None) -> str | None:
        if value and not (value.startswith(("http://", "https://")) and "{run}" in value):
            raise ValueError("write http:// or https:// and {run} for a run's name, as in https://HOST/runs/{run}")
        return value

    @classmethod
    def with_options(cls, **given: Any) -> "Settings":
        """The settings, overridden by a command's options; None stands for an option that was not given."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def queue_rules(self) -> "QueueRules":
        """The limits and shares of the judge's queue."""
        from judge_server.scheduling.admission import QueueRules  # loads the judge, which most commands do not need

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
        """The URL of the database in use."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / 'adjudge.db'}"

    @property
    def ledger_spool(self) -> Path:
        """The folder of the ledger's spool."""
        return self.data_dir / "ledger-spool"

    def signing_key(self) -> bytes:
        """The secret in use. If none is set, a random one is stored in `data_dir`, readable by its owner only."""
        if self.signing_secret is not None:
            return self.signing_secret.get_secret_value().encode()
        file = self.data_dir / "signing-secret"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            temporary = self.data_dir / f"signing-secret.{secrets.token_hex(8)}"
            temporary.touch(mode=0o600)
            temporary.write_text(secrets.token_hex(32) + "\n")
            with suppress(FileExistsError):
                file.hardlink_to(temporary)  # atomic; of several processes starting at once the first wins
            temporary.unlink()
        return file.read_text().strip().encode()


_PREFIX = "ADJUDGE_"

_EXPECTED = {
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "float_parsing": "write a number",
    "bool_parsing": "write true or false",
    "literal_error": "write {expected}",
    "greater_than": "write a number above {gt}",
    "greater_than_equal": "write a number of at least {ge}",
    "less_than": "write a number below {lt}",
    "less_than_equal": "write a number of at most {le}",
    "string_too_short": "write at least {min_length} characters",
    "too_short": "write at least {min_length} characters",
}


def _variable(name: str) -> str:
    return f"{_PREFIX}{name.upper()}"


def _causes(error: ValidationError) -> Iterator[Mapping[str, Any]]:
    """The errors of each setting that lie deepest in it: of the forms that a value may have, those of the nearest."""
    errors = error.errors(include_url=False)
    for name in dict.fromkeys(one["loc"][:1] for one in errors):
        own = [one for one in errors if one["loc"][:1] == name]
        yield from (one for one in own if len(one["loc"]) == max(len(other["loc"]) for other in own))


def _describe(error: Mapping[str, Any]) -> str:
    """Say which setting is wrong and what to write, without the value: a secret may have been put there by mistake."""
    name, *inside = [str(part) for part in error["loc"] if "[" not in str(part)] or [""]
    where = f"{_variable(name)}, at {'.'.join(inside)}," if inside else _variable(name)
    expected = _EXPECTED.get(error["type"])
    message = expected.format(**error.get("ctx", {})) if expected else str(error["msg"]).removeprefix("Value error, ")
    return f"{where} is not valid: {message}"


_OTHER_VARIABLES = {"API_KEY", "CPU_MODEL", "GPU_MODEL", "JUDGE_CPUS", "LISTEN", "METRICS_KEY"}
"""Variables of the client and of the compose file."""

_RENAMED = (("FENCE_SECRET", "SIGNING_SECRET"),)
"""Variables of releases before, and what they are called now."""

_MIN_LIKENESS = 0.75


def misspelt_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each `ADJUDGE_…` variable that is not a setting but looks like one, with the setting's."""
    known = {name.upper() for name in Settings.model_fields}
    for variable, value in sorted(environment.items()):
        name = variable.upper().removeprefix(_PREFIX)
        if name == variable.upper() or name in known | _OTHER_VARIABLES or value.startswith("tcp://"):
            continue  # Kubernetes sets variables such as ADJUDGE_API_PORT=tcp://… for its services
        if now := dict(_RENAMED).get(name):
            yield f"{variable} has no effect; it is called {_PREFIX}{now} now"
            continue
        for nearest in get_close_matches(name, known, n=1, cutoff=_MIN_LIKENESS):
            yield f"{variable} is not a setting and has no effect; did you mean {_PREFIX}{nearest}?"
