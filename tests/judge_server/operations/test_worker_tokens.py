"""Worker tokens: valid for some minutes, if signed with the deployment's secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.auth import Authenticator
from judge_server.auth.keys import STALE_TTL_S
from judge_server.errors import NotReady, Unauthorized
from judge_server.operations.worker_tokens import TOKEN_LIFETIME_S, WorkerAuthenticator, WorkerTokens
from tests.judge_server.auth.keyed import InMemoryApiKeyStore
from trainer_client.wire.tenants import Limits


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@given(st.text(min_size=1, max_size=200).filter(str.isprintable))
def test_a_token_is_for_the_project_it_was_signed_for(project: str) -> None:
    passes = WorkerTokens(b"secret", Clock())
    assert passes.verify(passes.sign(project)) == project


def test_a_token_expires() -> None:
    clock = Clock()
    passes = WorkerTokens(b"secret", clock)
    shown = passes.sign("b")
    clock.now += TOKEN_LIFETIME_S
    assert passes.verify(shown) == "b"
    clock.now += 1
    assert passes.verify(shown) is None


@pytest.mark.parametrize(
    "alter",
    [
        lambda shown: shown.replace("_b", "_c"),
        lambda shown: shown.replace("1000600", "9000600"),
        lambda shown: shown[:-4] + "0_b" if shown[-4] != "0" else shown[:-4] + "1_b",
        lambda shown: shown.removeprefix("adjwork_"),
        lambda shown: "",
        lambda shown: "adj_0123456789abcdef_secret",
    ],
)
def test_an_altered_token_is_invalid(alter: object) -> None:
    passes = WorkerTokens(b"secret", Clock())
    assert callable(alter)
    altered = alter(passes.sign("b"))
    assert altered != passes.sign("b")
    assert passes.verify(altered) is None


def test_a_token_of_another_deployment_is_invalid() -> None:
    assert WorkerTokens(b"secret", Clock()).verify(WorkerTokens(b"other", Clock()).sign("b")) is None


# Projects of tokens


async def test_an_invalid_token_has_no_project_and_costs_no_look_up() -> None:
    key_store = InMemoryApiKeyStore(broken=True)
    assert await WorkerAuthenticator(WorkerTokens(b"secret"), key_store)("adj_0123456789abcdef_secret") is None


async def test_while_the_store_is_unreachable_a_recently_seen_project_is_unchanged_and_others_get_not_ready() -> None:
    key_store = InMemoryApiKeyStore()
    key_store.add("score", project_id="b", limits=Limits(weight=3.0))
    passes = WorkerTokens(b"secret")
    identities = WorkerAuthenticator(passes, key_store, key_store.clock)
    seen = await identities(passes.sign("b"))
    assert seen is not None
    assert (seen.project_id, seen.limits.weight) == ("b", 3.0)
    key_store.broken = True
    key_store.seconds = STALE_TTL_S - 1
    assert await identities(passes.sign("b")) == seen
    with pytest.raises(NotReady, match="store does not answer"):
        await identities(passes.sign("c"))
    key_store.seconds = STALE_TTL_S
    with pytest.raises(NotReady, match="store does not answer"):
        await identities(passes.sign("b"))


async def test_a_token_for_an_unknown_project_is_invalid() -> None:
    key_store = InMemoryApiKeyStore()
    key_store.add("score", project_id="b")
    passes = WorkerTokens(b"secret")
    assert await WorkerAuthenticator(passes, key_store)(passes.sign("c")) is None


@pytest.mark.parametrize("required", [True, False])
async def test_a_token_opens_its_project_and_an_invalid_one_is_refused_even_where_no_key_is_needed(
    required: bool,
) -> None:
    key_store = InMemoryApiKeyStore()
    key_store.add("score", project_id="b")
    ours, theirs = WorkerTokens(b"secret"), WorkerTokens(b"other")
    authenticator = Authenticator(key_store, required=required, worker_tokens=WorkerAuthenticator(ours, key_store))
    assert (await authenticator.identify(f"Bearer {ours.sign('b')}")).project_id == "b"
    for shown in (theirs.sign("b"), theirs.sign("default"), ours.sign("b")[:-10], "adjwork_"):
        for asked in (authenticator, Authenticator(key_store, required=required)):
            with pytest.raises(Unauthorized, match="ADJUDGE_SIGNING_SECRET, and clocks"):
                await asked.identify(f"Bearer {shown}")
