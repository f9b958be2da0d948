"""Every target read back by the parser of its syntax, with hostile names in it."""

import argparse
import http.server
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from promote_cases import (
    CREATED,
    NODE,
    bash_words,
    deployment,
    gate_record,
    run_with_stub,
    systemd_words,
    trial,
    undollared,
)

from autotune.errors import NotPromotable
from autotune.promote import Deployment, Target, render, serve_argv
from autotune.promote.container import arguments, environment
from autotune.promote.rendering import CHECKSUM
from autotune.records import GateRecord, ServerFacts

NASTY = 'm/it\'s "$(touch pwned)" `x` \\ %n ${HOME} $$\r\n- a: b\n; # \x1b[31m\u2028\x85é💥7, = :'
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
VALUES: dict[str, Any] = {
    "tensor-parallel-size": 2,
    "gpu-memory-utilization": 0.92,
    "enable-prefix-caching": False,
    "enable-chunked-prefill": True,
    "kv-cache-dtype": "fp8_e5m2",
    "compilation-config": '{"level": 3, "q": "it\'s"}',
    "seed": None,
    "env:VLLM_ATTENTION_BACKEND": "FLASHINFER",
}


def hostile(text: str) -> Deployment:
    return deployment(
        trial({**VALUES, "served-model-name": text, "env:NOTE": text}),
        name=text,
        study=text,
        model=f"m/{text}",
        extra_args=("--chat-template", f"/t/{text}", f"--x={text}"),
    )


def text_of(made: Deployment, target: Target) -> str:
    (file,) = render(made, [target])
    return file.text


def yaml_of(made: Deployment, target: Target) -> Any:
    return yaml.safe_load(text_of(made, target))


def kubernetes_of(made: Deployment) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(text_of(made, Target.KUBERNETES))}


def pod_of(made: Deployment) -> dict[str, Any]:
    return kubernetes_of(made)["Deployment"]["spec"]["template"]["spec"]


def unit_of(made: Deployment) -> dict[str, list[str]]:
    """Strict reading: sections, `Key=value`, comments; nothing else, no continuation."""
    entries: dict[str, list[str]] = {}
    for line in text_of(made, Target.SYSTEMD).split("\n"):
        if not line or line.startswith("#") or line in ("[Unit]", "[Service]", "[Install]"):
            continue
        key, equals, value = line.partition("=")
        assert equals
        assert key.isalnum(), line
        assert not line.endswith("\\")
        entries.setdefault(key, []).append(value)
    return entries


@SLOW
@given(TEXTS)
@example(NASTY)
def test_bash_runs_the_shell_script_with_the_exact_command(text: str) -> None:
    made = hostile(text)
    with tempfile.TemporaryDirectory() as folder:
        got = run_with_stub(text_of(made, Target.SHELL), "vllm", Path(folder))
        assert {path.name for path in Path(folder).iterdir()} == {"script.sh", "vllm"}
    assert tuple(got) == serve_argv(made)[1:]


@SLOW
@given(TEXTS)
@example(NASTY)
def test_bash_runs_docker_with_the_exact_command(text: str) -> None:
    made = hostile(text)
    with tempfile.TemporaryDirectory() as folder:
        got = run_with_stub(text_of(made, Target.DOCKER), "docker", Path(folder), environment={"HF_TOKEN": "s3cret"})
    image = got.index("vllm/vllm-openai:v0.32.0")
    assert tuple(got[image + 1 :]) == ("serve", *arguments(made))
    assert f"NOTE={text}" in got
    assert "s3cret" not in " ".join(got)


@pytest.mark.no_cover
@SLOW
@given(TEXTS)
@example(NASTY)
def test_yaml_targets_hold_the_exact_command(text: str) -> None:
    made = hostile(text)
    (service,) = yaml_of(made, Target.COMPOSE)["services"].values()
    container = pod_of(made)["containers"][0]
    for command in (service["command"], container["args"]):
        assert tuple(undollared(word, {"HOME": "gone"}) for word in command) == arguments(made)
    assert undollared(service["environment"]["NOTE"], {}) == text


@given(TEXTS)
@example(NASTY)
@example("\\")
def test_systemd_starts_the_exact_command(text: str) -> None:
    made = hostile(text)
    unit = unit_of(made)
    (start,) = unit["ExecStart"]
    assert tuple(systemd_words(start, dollars=True)) == ("/usr/bin/env", *serve_argv(made))
    variables = dict(word.split("=", 1) for line in unit["Environment"] for word in systemd_words(line, dollars=False))
    assert variables["NOTE"] == text


def vllm_reader(document: dict[str, Any], *, drops_false: bool) -> list[str]:
    """What vLLM's `--config` reader makes of the YAML, up to 0.26 and after."""
    words: list[str] = []
    for key, value in document.items():
        if isinstance(value, bool):
            if value:
                words.append(f"--{key}")
            elif not drops_false:
                words.append(f"--no-{key}")
        else:
            words += [f"--{key}", str(value)]
    return words


@SLOW
@given(TEXTS)
@example(NASTY)
@example("-1x")
@example("1e3")
@example("true")
def test_vllm_config_means_the_same_arguments_to_every_version(text: str) -> None:
    made = hostile(text)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("enable-prefix-caching", "enable-chunked-prefill"):
        parser.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction)
    for flag in (
        *("tensor-parallel-size", "gpu-memory-utilization", "kv-cache-dtype", "compilation-config"),
        *("served-model-name", "host", "port", "shutdown-timeout", "chat-template", "x"),
    ):
        parser.add_argument(f"--{flag}")
    parser.add_argument("model")

    source = text_of(made, Target.VLLM_CONFIG)
    document = yaml.safe_load(source)
    (line,) = [line[1:].strip() for line in source.splitlines() if line.startswith("#   ")]
    words = bash_words(line)
    start = words.index("serve") + 1
    at = words.index("--config")
    for drops_false in (True, False):
        file = vllm_reader(document, drops_false=drops_false)
        # vLLM puts the file's words before the command line's, so that the latter win
        both = [*words[start:at], *file, *words[at + 2 :]]
        assert parser.parse_args(both) == parser.parse_args(list(serve_argv(made)[2:]))
    assert words[0] == "env"
    assert f"NOTE={text}" in words


def test_vllm_config_avoids_what_its_reader_gets_wrong() -> None:
    document = yaml_of(
        deployment(trial({"enable_prefix_caching": False, "seed": None, "x": "null", "y": '{"a": 1}'})),
        Target.VLLM_CONFIG,
    )
    assert document["no-enable-prefix-caching"] is True
    assert document["y"] == '{"a": 1}'
    assert not [key for key, value in document.items() if value is None or value is False or "_" in key]
    assert "model" not in document
    assert yaml_of(deployment(trial({})), Target.VLLM_CONFIG)


@pytest.mark.parametrize(
    "made", [deployment(), hostile(NASTY), deployment(gpu_indices=(1, 3)), deployment(node=replace(NODE, gpus=()))]
)
class TestRealParsers:
    @pytest.mark.parametrize("target", [Target.SHELL, Target.DOCKER])
    def test_bash(self, made: Deployment, target: Target) -> None:
        done = subprocess.run(["bash", "-n"], input=text_of(made, target).encode(), capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")

    @pytest.mark.parametrize("target", [Target.SHELL, Target.DOCKER])
    def test_shellcheck(self, made: Deployment, target: Target) -> None:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("shellcheck")), "--norc", "--severity=style", "-"],
            input=text_of(made, target).encode(),
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout.decode()) == (0, "")

    def test_compose_schema(self, made: Deployment, tmp_path: Path) -> None:
        (file,) = render(made, [Target.COMPOSE])
        path = tmp_path / file.path
        path.write_text(file.text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def test_kubernetes_schema(self, made: Deployment) -> None:
        documents = kubernetes_of(made)
        assert set(documents) == {"PersistentVolumeClaim", "Service", "Deployment"}
        for document in documents.values():
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)

    def test_systemd(self, made: Deployment, tmp_path: Path) -> None:
        unit_of(made)
        verifier = Path("/usr/bin/systemd-analyze")
        if not verifier.exists():
            pytest.skip("no systemd-analyze here")
        (file,) = render(made, [Target.SYSTEMD])
        path = tmp_path / file.path
        path.write_text(file.text, encoding="utf-8")
        done = subprocess.run([str(verifier), "verify", str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("target", list(Target))
class TestProvenance:
    def test_every_file_says_where_it_comes_from(self, target: Target) -> None:
        text = text_of(deployment(), target)
        head = text.partition(CHECKSUM)[0]
        for fact in (
            "autotune 9.9.9",
            "llama-chat",
            "trial 7",
            trial().config.hash,
            "2,400.0 tok/s [2,300.0 .. 2,500.0]",
        ):
            assert fact in head
        assert "1,200.0 tok/s" in head
        assert "250 ms [225 ms .. 275 ms]" in head
        assert "!!! GATE NOT RUN" in head
        assert "SIMULATED" not in text

    def test_the_gates_verdict_stands_in_it(self, target: Target) -> None:
        made = deployment(gate=gate_record(), author="ada", reason="p95 halves")
        head = text_of(made, target).partition(CHECKSUM)[0]
        for line in (
            "# gate        pass, with 1 doubt: every criterion holds",
            "# gate        order ABBA against baseline, prompts of seed 99, wall clock",
            "# gate        held slo: p95 TTFT 240 ms <= 500 ms",
            "# gate        doubt: the node is shared",
            "# promoted    by ada",
            "# reason      p95 halves",
        ):
            assert line in head
        assert "memory" not in head.partition("gate")[2].partition("measured")[0]
        assert "GATE" not in head

    def test_a_gate_that_was_skipped_is_no_quiet_line(self, target: Target) -> None:
        skipped = GateRecord.skipped("s", gate_record().candidate, why="--skip-gate was given", at=CREATED)
        head = text_of(deployment(gate=skipped), target).partition(CHECKSUM)[0]
        assert "# !!! GATE SKIPPED: nobody verified" in head
        assert "# gate        SKIPPED, nobody verified it: --skip-gate was given" in head

    def test_a_simulated_one_says_so_loudly(self, target: Target) -> None:
        text = text_of(deployment(trial(simulated=True), allow_simulated=True), target)
        assert "!!! SIMULATED" in text.partition(CHECKSUM)[0]

    def test_the_same_deployment_renders_to_the_same_bytes(self, target: Target) -> None:
        assert render(hostile(NASTY), [target]) == render(hostile(NASTY), [target])

    def test_no_secret_is_written(self, target: Target) -> None:
        made = deployment(trial({"env:AWS_SECRET_ACCESS_KEY": "s3cret"}), extra_args=("--api-key", "s3cret"))
        text = text_of(made, target)
        assert "s3cret" not in text
        assert "VLLM_API_KEY" in text


def test_targets_write_different_files() -> None:
    paths = [file.path for file in render(hostile(NASTY), list(Target))]
    assert len(set(paths)) == len(paths) == len(Target)
    assert not [path for path in paths if "/" in path or ".." in path]


def test_scripts_are_executable_and_nothing_else() -> None:
    assert {file.path: file.mode for file in render(deployment(), list(Target))} == {
        "prod-chat.vllm.yaml": 0o644,
        "prod-chat.docker.sh": 0o755,
        "prod-chat.compose.yaml": 0o644,
        "prod-chat.kubernetes.yaml": 0o644,
        "prod-chat.helm-values.yaml": 0o644,
        "prod-chat.service": 0o644,
        "prod-chat.sh": 0o755,
    }


class TestDocker:
    def options(self, made: Deployment, tmp_path: Path) -> list[str]:
        return run_with_stub(text_of(made, Target.DOCKER), "docker", tmp_path)

    def test_what_the_container_needs(self, tmp_path: Path) -> None:
        got = self.options(deployment(gpu_indices=(1, 3)), tmp_path)
        assert got[got.index("--gpus") + 1] == '"device=1,3"'  # read as CSV by docker, hence quotes inside
        assert "--ipc=host" in got
        assert got[got.index("--restart") + 1] == "unless-stopped"
        assert "--stop-timeout=70" in got  # drain 40 + 30, well above docker's 10 s
        assert got[got.index("--publish") + 1] == "127.0.0.1:8000:8000"
        assert "HF_TOKEN" in got
        assert "--entrypoint=vllm" in got

    def test_a_count_or_nothing_where_no_gpus_are_pinned(self, tmp_path: Path) -> None:
        got = self.options(deployment(), tmp_path)
        assert got[got.index("--gpus") + 1] == "2"
        assert "--gpus" not in self.options(deployment(node=replace(NODE, gpus=())), tmp_path)

    def test_local_files_are_mounted(self, tmp_path: Path) -> None:
        got = self.options(deployment(model="/models/a,b", extra_args=("--chat-template=/t/x.jinja",)), tmp_path)
        mounts = [got[i + 1] for i, word in enumerate(got) if word == "--mount"]
        assert mounts == [
            'type=bind,"source=/models/a,b","target=/models/a,b",readonly',
            "type=bind,source=/t/x.jinja,target=/t/x.jinja,readonly",
        ]

    def test_a_development_build_has_no_image(self) -> None:
        dev = trial(facts=ServerFacts(vllm_version="0.33.1.dev3+gabc"))
        with pytest.raises(NotPromotable, match="--image"):
            render(deployment(dev), [Target.DOCKER])
        assert "mine:1" in text_of(deployment(dev, image="mine:1"), Target.DOCKER)
        assert render(deployment(dev), [Target.SHELL, Target.SYSTEMD, Target.VLLM_CONFIG])


class TestCompose:
    def test_what_the_service_needs(self) -> None:
        service = yaml_of(deployment(), Target.COMPOSE)["services"]["prod-chat"]
        assert service["ipc"] == "host"
        assert service["stop_grace_period"] == "70s"
        assert service["environment"]["HF_TOKEN"] is None
        assert service["healthcheck"]["start_period"] == "600s"
        assert service["ports"][0]["host_ip"] == "127.0.0.1"
        devices = service["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}]

    def test_healthy_is_who_names_its_model_with_the_containers_own_key(self) -> None:
        asked = list[tuple[str, str | None]]()

        class Door(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append((self.path, self.headers["Authorization"]))
                self.send_response(200 if self.headers["Authorization"] == "Bearer k3y" else 401)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        with http.server.HTTPServer(("127.0.0.1", 0), Door) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            made = deployment(port=server.server_port, extra_args=("--api-key", "k3y"))
            (service,) = yaml_of(made, Target.COMPOSE)["services"].values()
            kind, python, *words = service["healthcheck"]["test"]
            assert (kind, python) == ("CMD", "python3")
            codes = [
                subprocess.run([sys.executable, *words], env={"VLLM_API_KEY": key}, capture_output=True, check=False)
                for key in ("k3y", "wrong")
            ]
            server.shutdown()
        assert [one.returncode == 0 for one in codes] == [True, False]
        assert asked == [("/v1/models", "Bearer k3y"), ("/v1/models", "Bearer wrong")]

    def test_pinned_gpus_exclude_a_count(self) -> None:
        service = yaml_of(deployment(gpu_indices=(1, 3)), Target.COMPOSE)["services"]["prod-chat"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "device_ids": ["1", "3"], "capabilities": ["gpu"]}


class TestKubernetes:
    @pytest.mark.parametrize("version", ["0.17.0", "0.18.0"])
    def test_the_grace_period_is_strictly_longer_than_what_it_covers(self, version: str) -> None:
        pod = pod_of(deployment(trial(facts=ServerFacts(vllm_version=version, startup_s=10.0))))
        container = pod["containers"][0]
        sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
        args = container["args"]
        drain = int(args[args.index("--shutdown-timeout") + 1]) if "--shutdown-timeout" in args else 0
        assert pod["terminationGracePeriodSeconds"] > sleep + drain
        assert sleep + drain >= 40 + 15  # twice the p99 of 20 s either way, after the endpoints are gone

    def test_gpus_requests_equal_limits(self) -> None:
        resources = pod_of(deployment())["containers"][0]["resources"]
        assert resources == {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}
        assert "resources" not in pod_of(deployment(node=replace(NODE, gpus=())))["containers"][0]

    @pytest.mark.parametrize(("gpus", "there"), [(1, False), (2, True), (4, True)])
    def test_shared_memory_where_workers_talk(self, gpus: int, there: bool) -> None:
        pod = pod_of(deployment(trial({"tensor-parallel-size": gpus}, gpus=gpus)))
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert ("shm" in volumes) is there
        assert (mounts.get("/dev/shm") == "shm") is there
        if there:
            assert volumes["shm"]["emptyDir"]["medium"] == "Memory"

    def test_workers_without_gpus_share_memory_as_well(self) -> None:
        pod = pod_of(deployment(trial({"tensor-parallel-size": 2}, gpus=2), node=replace(NODE, gpus=())))
        assert "shm" in {volume["name"] for volume in pod["volumes"]}

    def test_what_is_running_can_be_told_from_the_cluster(self) -> None:
        found = kubernetes_of(deployment())["Deployment"]["metadata"]["annotations"]
        assert found["autotune/output"] == (
            "2,400.0 tok/s [2,300.0 .. 2,500.0], per GPU 1,200.0 tok/s [1,150.0 .. 1,250.0]"
        )
        assert found["autotune/ttft-p95"] == "250 ms [225 ms .. 275 ms]"
        assert (found["autotune/node"], found["autotune/vllm-version"]) == ("2xH100-80GB", "0.32.0")
        scrape = kubernetes_of(deployment(port=9000))["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        assert (scrape["prometheus.io/scrape"], scrape["prometheus.io/port"]) == ("true", "9000")

    @pytest.mark.parametrize(("startup_s", "threshold"), [(30.0, 60), (299.9, 60), (301.0, 61), (1200.0, 240)])
    def test_the_start_up_probe_is_sized_from_the_measured_start(self, startup_s: float, threshold: int) -> None:
        made = deployment(trial(facts=ServerFacts(vllm_version="0.32.0", startup_s=startup_s)))
        probe = pod_of(made)["containers"][0]["startupProbe"]
        assert (probe["httpGet"]["path"], probe["periodSeconds"], probe["failureThreshold"]) == (
            "/health",
            10,
            threshold,
        )
        spec = kubernetes_of(made)["Deployment"]["spec"]
        assert spec["progressDeadlineSeconds"] > threshold * 10

    def test_a_first_start_may_download_the_weights(self) -> None:
        facts = ServerFacts(vllm_version="0.32.0", startup_s=100.0, weights_bytes=40_000_000_000)
        hub = pod_of(deployment(trial(facts=facts)))["containers"][0]["startupProbe"]
        assert hub["failureThreshold"] == 100  # 2 x 100 s + 2 x 40 GB at 100 MB/s = 1000 s
        disk = pod_of(deployment(trial(facts=facts), model="/m"))["containers"][0]["startupProbe"]
        assert disk["failureThreshold"] == 60

    def test_liveness_waits_for_nothing_and_kills_late(self) -> None:
        container = pod_of(deployment())["containers"][0]
        assert container["livenessProbe"]["initialDelaySeconds"] == 0
        assert container["livenessProbe"]["failureThreshold"] >= 3
        assert "initialDelaySeconds" not in container["readinessProbe"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models"

    def test_readiness_needs_no_key(self) -> None:
        container = pod_of(deployment(extra_args=("--api-key", "k")))["containers"][0]
        assert container["readinessProbe"]["httpGet"]["path"] == "/health"

    def test_not_root_and_every_cache_writable(self) -> None:
        made = deployment()
        pod = pod_of(made)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] != 0
        folders = [value for key, value in environment(made).items() if value.startswith("/") and key != "NOTE"]
        mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
        assert len(folders) >= 6
        assert all(any(folder.startswith(mount) for mount in mounts) for folder in folders)

    def test_the_token_comes_from_a_secret(self) -> None:
        env = {entry["name"]: entry for entry in pod_of(deployment())["containers"][0]["env"]}
        assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "prod-chat-secrets"
        assert "Secret" not in kubernetes_of(deployment())

    def test_the_service_reaches_the_pod(self) -> None:
        documents = kubernetes_of(deployment())
        labels = documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert documents["Service"]["spec"]["selector"] == labels
        assert documents["Deployment"]["spec"]["selector"]["matchLabels"] == labels
        assert pod_of(deployment())["enableServiceLinks"] is False


class TestSystemd:
    def test_what_the_unit_needs(self) -> None:
        unit = unit_of(deployment())
        assert unit["KillMode"] == ["mixed"]
        assert unit["Restart"] == ["on-failure"]
        assert int(unit["RestartSec"][0]) >= 10
        assert int(unit["TimeoutStopSec"][0]) > 40
        assert unit["LimitMEMLOCK"] == ["infinity"]
        assert unit["EnvironmentFile"] == ["-/etc/vllm/prod-chat.env"]

    def test_an_absolute_program_needs_no_env(self) -> None:
        (start,) = unit_of(deployment(command=("/opt/v/bin/vllm", "serve")))["ExecStart"]
        assert systemd_words(start, dollars=True)[0] == "/opt/v/bin/vllm"

    def test_pinned_gpus_mean_what_nvidia_smi_shows(self) -> None:
        lines = unit_of(deployment(gpu_indices=(1, 3)))["Environment"]
        assert '"CUDA_VISIBLE_DEVICES=1,3"' in lines
        assert '"CUDA_DEVICE_ORDER=PCI_BUS_ID"' in lines
