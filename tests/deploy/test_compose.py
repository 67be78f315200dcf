"""The output of `docker compose config` for each judge, and rules that hold for its services."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy import dockerfile
from tests.deploy.tools import ROOT, VENV, needs_tools, run

FILE = ROOT / "docker/compose.yaml"
SECRETS = {
    "POSTGRES_PASSWORD": "of-postgres",
    "VALKEY_PASSWORD": "of-valkey",
    "ADJUDGE_SIGNING_SECRET": "of-the-fences-here",
    "ADJUDGE_JUDGE_TOKEN": "that-of-the-judge",
    "ADJUDGE_BOOTSTRAP_KEY": f"adj_{'a' * 16}_{'b' * 43}",
}
ONE_SHOT = {"migrate", "model"}

Services = dict[str, dict[str, Any]]


def config(*profiles: str, **env: str) -> Services:
    """Return the services that these profiles start, with everything merged and filled in."""
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    command = [VENV / "bin/docker-compose", "--env-file", "/dev/null", "--file", FILE, *chosen]
    rendered = run(*command, "config", "--format", "json", env={**SECRETS, **env})
    assert rendered.returncode == 0, rendered.stderr
    assert rendered.stderr == ""
    services: Services = json.loads(rendered.stdout)["services"]
    return services


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def services(request: pytest.FixtureRequest) -> Services:
    """All services with one of the judges, including monitoring."""
    return config(request.param, "monitoring", GRAFANA_PASSWORD="of-grafana")


@needs_tools
def test_each_profile_starts_its_judge_and_no_other() -> None:
    common = {"postgres", "valkey", "migrate", "api", "worker"}
    assert config("cpu").keys() == common | {"model", "judge-cpu"}
    assert config("gpu").keys() == common | {"judge-gpu"}
    assert config("cpu", "monitoring").keys() == common | {"model", "judge-cpu", "prometheus", "grafana"}


@needs_tools
@pytest.mark.parametrize("secret", SECRETS)
def test_compose_stops_at_an_unset_secret_and_names_it(secret: str) -> None:
    command = [VENV / "bin/docker-compose", "--env-file", "/dev/null", "--file", FILE, "--profile", "cpu", "config"]
    for env in ({k: v for k, v in SECRETS.items() if k != secret}, {**SECRETS, secret: ""}):
        stopped = run(*command, env=env)
        assert stopped.returncode != 0
        assert f"set {secret} in docker/.env" in stopped.stderr


@needs_tools
def test_the_example_env_file_names_every_variable_and_contains_no_secret() -> None:
    given = (ROOT / "docker/.env.example").read_text(encoding="utf-8")
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", given, re.MULTILINE))
    text = FILE.read_text(encoding="utf-8")
    used = {word.partition("}")[0].partition(":")[0] for word in text.split("${")[1:]}
    assert used <= example.keys()
    services = yaml.safe_load(text)["services"].values()
    handed_on = {name for service in services for name, value in service.get("environment", {}).items() if not value}
    assert handed_on <= set(re.findall(r"^# ([A-Z_]+)=$", given, re.MULTILINE))
    assert all(not example[name] for name in example if name.endswith(("PASSWORD", "SECRET", "TOKEN", "KEY")))


@needs_tools
def test_both_judges_have_the_name_that_the_api_uses(services: Services) -> None:
    (judge,) = [service for name, service in services.items() if name.startswith("judge-")]
    assert judge["networks"]["judges"]["aliases"] == ["judge"]
    assert services["api"]["environment"]["ADJUDGE_JUDGES"] == "http://judge:8001"
    token = judge["environment"]["ADJUDGE_JUDGE_TOKEN"]
    assert token == services["api"]["environment"]["ADJUDGE_JUDGE_TOKEN"] == "that-of-the-judge"


@needs_tools
def test_only_the_api_can_be_exposed_and_then_it_requires_keys(services: Services) -> None:
    published = {name: port["host_ip"] for name, service in services.items() for port in service.get("ports", [])}
    assert set(published.values()) == {"127.0.0.1"}
    opened = config("cpu", ADJUDGE_LISTEN="0.0.0.0")
    assert [n for n, s in opened.items() for p in s.get("ports", []) if p["host_ip"] != "127.0.0.1"] == ["api"]
    assert opened["api"]["environment"]["ADJUDGE_KEYS"] == "required"


@needs_tools
def test_containers_have_a_read_only_root_no_extra_privileges_and_a_memory_limit(services: Services) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
        assert service["deploy"]["resources"]["limits"]["memory"], name
        assert not [mount for mount in service.get("volumes", []) if "docker.sock" in mount["source"]], name


@needs_tools
@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_two_processors_suffice_and_the_judge_uses_all_or_the_configured_number(profile: str) -> None:
    def processors(**env: str) -> dict[str, float | None]:
        started = config(profile, "monitoring", **env).items()
        return {name: service["deploy"]["resources"]["limits"].get("cpus") for name, service in started}

    judge = f"judge-{profile}"
    unbounded = processors()
    assert [name for name, most in unbounded.items() if not most] == [judge]
    assert max(most for most in unbounded.values() if most) <= 2
    assert processors(ADJUDGE_JUDGE_CPUS="3")[judge] == 3


@needs_tools
@pytest.mark.parametrize(("profile", "loading"), [("cpu", "model"), ("gpu", "judge-gpu")])
def test_only_the_service_that_downloads_the_model_gets_the_optional_hub_token(profile: str, loading: str) -> None:
    for token in ("of-the-hub", None):
        services = config(profile, **({"HF_TOKEN": token} if token else {}))
        found = {n: s["environment"]["HF_TOKEN"] for n, s in services.items() if "HF_TOKEN" in s.get("environment", {})}
        assert found == {loading: token}


@needs_tools
def test_no_image_is_tagged_latest(services: Services) -> None:
    for name, service in services.items():
        tag = service["image"].rpartition("/")[2].partition(":")[2]
        assert any(letter.isdigit() for letter in tag), name


@needs_tools
def test_our_images_are_targets_of_the_dockerfile(services: Services) -> None:
    for name, service in services.items():
        if "build" in service:
            assert service["build"]["target"] in dockerfile.stages(), name
            assert service["image"].startswith(f"adjudge-{service['build']['target']}:"), name


@needs_tools
def test_services_wait_until_their_dependencies_are_healthy(services: Services) -> None:
    for name, service in services.items():
        assert ("healthcheck" in service) == (name not in ONE_SHOT), name
        for other, dependency in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert dependency["condition"] == expected, f"{name} on {other}"


@needs_tools
def test_services_share_networks_with_their_dependencies_and_judges_cannot_reach_the_database(
    services: Services,
) -> None:
    networks = {name: set(service["networks"]) for name, service in services.items()}
    for pair in (
        ("api", "postgres"),
        ("api", "valkey"),
        ("worker", "api"),
        ("worker", "valkey"),
        ("migrate", "postgres"),
        ("prometheus", "api"),
        ("prometheus", "worker"),
    ):
        assert networks[pair[0]] & networks[pair[1]], pair
    (judge,) = [name for name in services if name.startswith("judge-")]
    assert networks["api"] & networks[judge]
    assert networks[judge] & networks["valkey"]
    assert networks[judge] & networks["prometheus"]
    assert not networks[judge] & networks["postgres"]
    assert "judges" not in networks["worker"]


@needs_tools
def test_mounted_files_exist(services: Services) -> None:
    mounts = [mount for service in services.values() for mount in service.get("volumes", []) if mount["type"] == "bind"]
    assert mounts
    for mount in mounts:
        assert (ROOT / mount["source"]).exists(), mount["source"]
        assert mount["read_only"], mount["source"]


def test_the_judges_network_is_internal() -> None:
    assert yaml.safe_load(FILE.read_text(encoding="utf-8"))["networks"]["judges"] == {"internal": True}
