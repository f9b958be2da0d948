"""The Compose file and the Dockerfile at the repository root: the schema, and what a GPU host needs of them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


def test_it_is_a_compose_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken.yml"
    broken.write_text(FILE.read_text(encoding="utf-8").replace("services:", "servicez:"), encoding="utf-8")
    assert subprocess.run([*command, str(broken)], capture_output=True, check=False).returncode == 1


def test_it_starts_the_database_the_service_and_the_dashboard(document: dict[str, Any]) -> None:
    assert set(document["services"]) == {"postgres", "service", "tuner", "dashboard", "prometheus"}
    assert all("healthcheck" in service for service in document["services"].values())
    assert [name for name, service in document["services"].items() if "profiles" in service] == ["tuner", "prometheus"]
    for name in ("service", "tuner", "dashboard"):
        assert document["services"][name]["depends_on"]["postgres"]["condition"] == "service_healthy"


def test_the_dashboard_waits_for_who_makes_the_tables(document: dict[str, Any]) -> None:
    assert document["services"]["dashboard"]["depends_on"]["service"]["condition"] == "service_healthy"


def test_ports_are_published_on_loopback_only(document: dict[str, Any]) -> None:
    ports = [port for service in document["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_secrets_come_from_the_environment(document: dict[str, Any]) -> None:
    text = FILE.read_text(encoding="utf-8")
    in_urls = re.findall(r"://autotune:(.+?)@postgres", text)
    assert len(in_urls) == 3
    own = document["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert all(password.startswith("${POSTGRES_PASSWORD:?") for password in (own, *in_urls))
    for name in ("tuner", "service"):
        assert document["services"][name]["environment"]["HF_TOKEN"] == "${HF_TOKEN:-}"
    assert document["services"]["service"]["environment"]["AUTOTUNE_TOKEN"].startswith("${AUTOTUNE_TOKEN:?")
    assert document["secrets"] == {"autotune_token": {"environment": "AUTOTUNE_TOKEN"}}


def test_versions_are_pinned(document: dict[str, Any]) -> None:
    assert re.fullmatch(r"postgres:\d+", document["services"]["postgres"]["image"])
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"ARG VLLM_VERSION=v\d+\.\d+\.\d+", dockerfile)
    assert "latest" not in dockerfile
    default = re.search(r"ARG VLLM_VERSION=(\S+)", dockerfile)
    assert default
    for name in ("tuner", "service"):
        assert document["services"][name]["build"]["args"]["VLLM_VERSION"] == f"${{VLLM_VERSION:-{default[1]}}}"
    assert re.fullmatch(r"prom/prometheus:v\d+\.\d+\.\d+", document["services"]["prometheus"]["image"])


@pytest.mark.parametrize("name", ["tuner", "service"])
def test_what_launches_servers_has_the_gpus_and_shared_memory(document: dict[str, Any], name: str) -> None:
    tuner = document["services"][name]
    (device,) = tuner["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert "gpu" in device["capabilities"]
    assert tuner["ipc"] == "host"
    assert int(tuner["stop_grace_period"].rstrip("s")) > 10  # docker's default kills a server that drains


def test_everything_worth_keeping_lies_in_a_named_volume(document: dict[str, Any]) -> None:
    mounted = {mount.split(":")[0] for service in document["services"].values() for mount in service.get("volumes", [])}
    assert mounted == set(document["volumes"])


@pytest.mark.parametrize("name", ["tuner", "service"])
def test_what_is_slow_to_make_outlives_the_container(document: dict[str, Any], name: str) -> None:
    service = document["services"][name]
    places = {mount.split(":")[1] for mount in service["volumes"]}
    caches = ["AUTOTUNE_CACHE_DIR", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"]
    for variable in caches:
        assert any(Path(service["environment"][variable]).is_relative_to(place) for place in places), variable


def test_the_stages_that_are_built_exist(document: dict[str, Any]) -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, flags=re.MULTILINE))
    builds = [service["build"] for service in document["services"].values() if "build" in service]
    assert {build["target"] for build in builds} == (stages - {"slim"}) | {"${TUNER_TARGET:-tuner}"}
    assert all((ROOT / build["dockerfile"]).is_file() for build in builds)
    copied = re.findall(r"^COPY (.+) \S+$", dockerfile, flags=re.MULTILINE)
    assert copied
    assert all((ROOT / path).exists() for line in copied for path in line.split())


def test_the_tuner_alone_is_built_without_cuda() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    stage = dockerfile.split(" AS slim\n")[1].split("\nFROM ")[0]
    assert re.search(r"^FROM python:\S+-slim AS slim$", dockerfile, flags=re.MULTILINE)
    assert "USER tuner" in stage
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*asked["dependencies"], *asked["optional-dependencies"]["postgres"]]
    assert not [one for one in wanted if re.match(r"(vllm|torch|nvidia-cu|cupy)", one)]


def test_prometheus_asks_the_service_with_its_token(document: dict[str, Any]) -> None:
    asked = yaml.safe_load((ROOT / document["configs"]["prometheus"]["file"]).read_text(encoding="utf-8"))
    (job,) = asked["scrape_configs"]
    assert job["authorization"]["credentials_file"] == "/run/secrets/autotune_token"
    assert job["static_configs"] == [{"targets": ["service:8321"]}]
    assert "service" in document["services"]["service"]["command"][-1]  # by which name it is asked
