import pytest

from tests.trainer_client.fake_service import VERSION, ScriptedReply
from trainer_client import AsyncClient, Client

KEY = "adj_abcdefghijklmnop_" + "s" * 43


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch):
    monkeypatch.delenv("ADJUDGE_API_KEY", raising=False)


@pytest.mark.parametrize(("given", "sent"), [(None, f"Bearer {KEY}"), ("adj_other", "Bearer adj_other"), ("", None)])
def test_the_key_of_the_environment_is_used_unless_one_is_given(service, connect, monkeypatch, given, sent):
    monkeypatch.setenv("ADJUDGE_API_KEY", f"{KEY}\n")
    service.script(ScriptedReply(body=VERSION))
    connect(service.url, api_key=given).rubric("math/quadratics")
    assert service.asked[0].headers.get("authorization") == sent


def test_without_a_key_none_is_sent(service, connect):
    service.script(ScriptedReply(body=VERSION))
    connect(service.url).rubric("math/quadratics")
    assert "authorization" not in service.asked[0].headers


def test_an_authorization_header_of_the_caller_replaces_the_key(service, connect):
    service.script(ScriptedReply(body=VERSION))
    connect(service.url, api_key=KEY, headers={"authorization": "Basic YTpi"}).rubric("math/quadratics")
    assert service.asked[0].headers["authorization"] == "Basic YTpi"


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
@pytest.mark.parametrize("key", ["adj_a b", "adj_ä", f"{KEY}\r\nX: y", " "])
def test_an_invalid_key_is_refused_and_not_repeated_in_the_error(client_class, key):
    with pytest.raises(ValueError, match="api_key has spaces or characters that no key has") as refused:
        client_class("http://judge:8000", api_key=key)
    assert key.strip() == "" or key not in str(refused.value)


def test_the_repr_of_a_clients_settings_hides_the_key():
    client = Client("http://judge:8000", api_key=KEY)
    assert KEY not in repr(client.settings)
    assert client.settings.api_key == KEY
    client.close()
