"""Helm values, read as the chart reads them: `rendered` is what vllm-stack 0.1.16 makes of the keys that we write."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from promote_cases import NODE, deployment, trial, undollared

from autotune.errors import NotPromotable
from autotune.promote import Deployment, Target, render, serve_argv
from autotune.records import ServerFacts


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


TEXT, WHOLE, ANY = {"type": "string"}, {"type": "integer"}, {"type": "object"}
TEXTS_LIST, LIST = {"type": "array", "items": TEXT}, {"type": "array"}
PROBE = obj(
    failureThreshold=WHOLE,
    httpGet=obj(path=TEXT, port={"type": ["integer", "string"]}),
    initialDelaySeconds=WHOLE,
    periodSeconds=WHOLE,
    timeoutSeconds=WHOLE,  # not declared by the chart, which refuses no further keys here and passes them on
)
DECLARED = obj(
    servingEngineSpec=obj(
        containerPort=WHOLE,
        imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
        securityContext=ANY,
        containerSecurityContext=ANY,
        strategy=ANY,
        startupProbe=PROBE,
        livenessProbe=PROBE,
        readinessProbe=PROBE,
        vllmApiKey=obj(secretName=TEXT, secretKey=TEXT),
        runtimeClassName=TEXT,
        modelSpec={
            "type": "array",
            "items": obj(
                name=TEXT,
                annotations=ANY,
                podAnnotations=ANY,
                repository=TEXT,
                tag=TEXT,
                modelURL=TEXT,
                replicaCount=WHOLE,
                requestCPU=WHOLE,
                requestMemory=TEXT,
                requestGPU={"type": ["integer", "number", "string"]},
                pvcStorage=TEXT,
                pvcAccessMode=TEXTS_LIST,
                vllmConfig=obj(enablePrefixCaching={"type": "boolean"}, tensorParallelSize=WHOLE, extraArgs=TEXTS_LIST),
                env=LIST,
                shmSize=TEXT,
                extraVolumes=LIST,
                extraVolumeMounts=LIST,
            ),
        },
    )
)
"""Of the keys that we write, what the chart's values.schema.json declares them to be; other keys are refused."""

CHART_VALUES = {
    "containerSecurityContext": {"runAsNonRoot": False},
    "strategy": {},
    **{
        probe: {
            "initialDelaySeconds": 15,
            "periodSeconds": 10,
            "failureThreshold": 3,
            "httpGet": {"path": "/health", "port": 8000},
        }
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    },
}
"""The chart's own values, which Helm lays ours over."""

RELEASE = "r" * 18
HELM, CHART = (os.environ.get(f"AUTOTUNE_TEST_HELM{what}", "") for what in ("", "_CHART"))
"""A helm program, and a folder with the chart; no package registry that tests may use has either."""

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)


def values_of(made: Deployment) -> dict[str, Any]:
    (file,) = render(made, [Target.HELM])
    return yaml.safe_load(file.text)


def release_of(text: str) -> str:
    """The release that the file's head says to install."""
    found = re.search(r"helm upgrade --install (\S+) ", text)
    assert found is not None
    return found[1]


def model_of(made: Deployment) -> dict[str, Any]:
    (model,) = values_of(made)["servingEngineSpec"]["modelSpec"]
    return model


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """As Helm merges values: maps key by key, all else replaced."""
    merged = {
        key: laid_over(value, above[key]) if isinstance(value, dict) and isinstance(above.get(key), dict) else value
        for key, value in below.items()
    }
    return {**merged, **{key: value for key, value in above.items() if not isinstance(below.get(key), dict)}}


def rendered(values: dict[str, Any], release: str = RELEASE) -> dict[str, Any]:
    """The chart's Deployment, template by template, of the keys that we use."""
    engine = laid_over(CHART_VALUES, values["servingEngineSpec"])
    (model,) = engine["modelSpec"]
    config = model["vllmConfig"]
    command = ["vllm", "serve", model["modelURL"], "--host", "0.0.0.0", "--port", str(engine["containerPort"])]
    command.append("--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching")
    shm = "tensorParallelSize" in config
    if shm:
        command += ["--tensor-parallel-size", str(config["tensorParallelSize"])]
    command += config.get("extraArgs", [])
    amounts = {"memory": model["requestMemory"], "cpu": str(model["requestCPU"])}
    gpus = {"nvidia.com/gpu": str(model["requestGPU"])} if model["requestGPU"] > 0 else {}
    labels = {"model": model["name"], "helm-release-name": release}
    pod = {
        "securityContext": engine["securityContext"],
        "hostname": f"{release}-{model['name']}-vllm-stack",
        "subdomain": service_of(model, release),
        "containers": [
            {
                "name": "vllm",
                "image": f"{model['repository']}:{model['tag']}",
                "command": command,
                "imagePullPolicy": engine["imagePullPolicy"],
                "securityContext": engine["containerSecurityContext"],
                "env": [{"name": "HF_HOME", "value": "/data"}, *model["env"]],
                "ports": [{"name": "container-port", "containerPort": engine["containerPort"]}],
                **{probe: engine[probe] for probe in ("startupProbe", "livenessProbe", "readinessProbe")},
                "resources": {"requests": {**amounts, **gpus}, "limits": gpus or None},
                "volumeMounts": [
                    {"name": f"{release}-storage", "mountPath": "/data"},
                    *([{"name": "shm", "mountPath": "/dev/shm"}] if shm else []),
                    *model.get("extraVolumeMounts", []),
                ],
            }
        ],
        "volumes": [
            {
                "name": f"{release}-storage",
                "persistentVolumeClaim": {"claimName": f"{release}-{model['name']}-storage-claim"},
            },
            *([{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": model["shmSize"]}}] if shm else []),
            *model.get("extraVolumes", []),
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"{release}-{model['name']}-deployment-vllm",
            "labels": labels,
            "annotations": model["annotations"],
        },
        "spec": {
            "replicas": model["replicaCount"],
            "strategy": engine["strategy"],
            "selector": {"matchLabels": labels},
            "progressDeadlineSeconds": 1200,
            "template": {"metadata": {"labels": labels, "annotations": model["podAnnotations"]}, "spec": pod},
        },
    }


def service_of(model: dict[str, Any], release: str) -> str:
    """The name of the chart's Service, which its pods have as a subdomain."""
    return f"{release}-{model['name']}-engine-service"


def hostile(text: str) -> Deployment:
    return deployment(
        trial({"enable-prefix-caching": False, "tensor-parallel-size": 2, "served-model-name": text, "env:NOTE": text}),
        name=text,
        study=text,
        model=f"m/{text}",
        extra_args=("--chat-template", f"/t/{text}"),
    )


CASES = [
    deployment(),
    deployment(trial({"tensor-parallel-size": 1}, gpus=1)),
    deployment(node=replace(NODE, gpus=())),
    deployment(model="/models/m", extra_args=("--api-key", "k")),
    hostile('m/it\'s "$(touch x)" ${HOME}\n- a: b'),
]


@pytest.mark.parametrize("made", CASES)
def test_only_keys_that_the_chart_declares(made: Deployment) -> None:
    jsonschema.validate(values_of(made), DECLARED)
    broken = values_of(made)
    broken["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["extraArgs"].append(1)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, DECLARED)


@pytest.mark.parametrize("made", CASES)
def test_what_the_chart_makes_of_it_is_a_deployment(made: Deployment) -> None:
    found = rendered(values_of(made))
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)
    pod = found["spec"]["template"]["spec"]
    for name in (pod["hostname"], pod["subdomain"], service_of(model_of(made), RELEASE)):
        assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name), name
    names = [entry["name"] for entry in pod["containers"][0]["env"]]
    assert len(names) == len(set(names))
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
@example("on")
@example("$(HOME) $$")
def test_the_chart_starts_the_same_server(text: str) -> None:
    made = hostile(text)
    container = rendered(values_of(made))["spec"]["template"]["spec"]["containers"][0]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    for flag in ("tensor-parallel-size", "served-model-name", "host", "port", "shutdown-timeout", "chat-template"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("model")
    known = {"HOME": "gone"}
    got = parser.parse_args([undollared(word, known) for word in container["command"][2:]])
    wanted = parser.parse_args(list(serve_argv(made, host="0.0.0.0")[2:]))
    wanted.shutdown_timeout = "20"  # what the chart's 30 s leave
    assert got == wanted
    env = {entry["name"]: undollared(entry.get("value", ""), known) for entry in container["env"]}
    assert env["NOTE"] == text


def test_what_the_charts_own_values_would_say_is_said_otherwise() -> None:
    pod = rendered(values_of(deployment()))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is container["securityContext"]["runAsNonRoot"] is True
    assert [container[f"{kind}Probe"]["initialDelaySeconds"] for kind in ("startup", "liveness", "readiness")] == [
        0
    ] * 3
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/models"


@pytest.mark.parametrize("name", ["on", "No", "null", "9", "a" * 64, "llama-3.1-8b-instruct-chat"])
def test_release_and_model_are_text_without_quotes_and_fit_their_labels(name: str) -> None:
    made = deployment(name=name)
    (file,) = render(made, [Target.HELM])
    release = release_of(file.text)
    for word in (release, model_of(made)["name"]):
        assert yaml.safe_load(word) == word
    assert len(service_of(model_of(made), release)) <= 63


@pytest.mark.skipif(not CHART or not HELM, reason="AUTOTUNE_TEST_HELM_CHART and AUTOTUNE_TEST_HELM name none")
@pytest.mark.parametrize("made", CASES)
def test_helm_itself_makes_of_it_what_this_file_says(made: Deployment, tmp_path: Path) -> None:
    (file,) = render(made, [Target.HELM])
    path, release = tmp_path / "values.yaml", release_of(file.text)
    path.write_text(file.text, encoding="utf-8")
    done = subprocess.run(
        [HELM, "template", release, CHART, "-f", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    documents = [one for one in yaml.safe_load_all(done.stdout) if one]
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    (found,) = [one for one in documents if one["kind"] == "Deployment" and one["metadata"]["name"].endswith("-vllm")]
    wanted = rendered(values_of(made), release)
    pod, expected = found["spec"]["template"]["spec"], wanted["spec"]["template"]["spec"]
    assert found["spec"]["strategy"] == wanted["spec"]["strategy"]
    assert found["metadata"]["annotations"] == wanted["metadata"]["annotations"]
    assert {key: pod.get(key) for key in expected if key != "containers"} == {
        key: value for key, value in expected.items() if key != "containers"
    }
    (container,), (own,) = pod["containers"], expected["containers"]
    env = {one["name"]: one for one in container["env"]}
    assert {one["name"]: env[one["name"]] for one in own["env"]} == {one["name"]: one for one in own["env"]}
    plain = [key for key in own if key not in ("env", "ports")]
    assert {key: container[key] for key in plain} == {key: own[key] for key in plain}
    assert own["ports"][0] in container["ports"]


def test_prefix_caching_is_always_said_as_the_chart_turns_it_off_otherwise() -> None:
    def said(values: dict[str, Any], told: bool | None) -> bool:
        facts = ServerFacts(vllm_version="0.32.0", prefix_caching=told)
        return model_of(deployment(trial(values, facts=facts)))["vllmConfig"]["enablePrefixCaching"]

    assert said({}, None) is True
    assert said({}, False) is False
    assert said({"enable-prefix-caching": False}, True) is False


def test_the_drain_fits_into_the_grace_period_that_the_chart_has() -> None:
    model = model_of(deployment())
    words = model["vllmConfig"]["extraArgs"]
    assert int(words[words.index("--shutdown-timeout") + 1]) < 30
    (file,) = render(deployment(), [Target.HELM])
    assert "cut 20 s after TERM" in file.text
    old = trial(facts=ServerFacts(vllm_version="0.17.0"))
    assert "--shutdown-timeout" not in model_of(deployment(old))["vllmConfig"]["extraArgs"]


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        (None, ("vllm/vllm-openai", "v0.32.0")),
        ("reg.io:5000/v/img:1", ("reg.io:5000/v/img", "1")),
        ("v/img@sha256:" + "a" * 64, ("v/img@sha256", "a" * 64)),
    ],
)
def test_the_image_is_pinned(image: str | None, parts: tuple[str, str]) -> None:
    model = model_of(deployment(image=image))
    assert (model["repository"], model["tag"]) == parts


@pytest.mark.parametrize("image", ["img", "reg.io:5000/img"])
def test_an_image_without_a_tag_cannot_be_written(image: str) -> None:
    with pytest.raises(NotPromotable, match="no tag"):
        render(deployment(image=image), [Target.HELM])


def test_gpus_start_up_and_secrets() -> None:
    values = values_of(deployment(extra_args=("--api-key", "k")))
    engine, model = values["servingEngineSpec"], model_of(deployment(extra_args=("--api-key", "k")))
    assert model["requestGPU"] == 2
    assert engine["startupProbe"]["failureThreshold"] == 60
    assert engine["vllmApiKey"] == {"secretName": "prod-chat-secrets", "secretKey": "VLLM_API_KEY"}
    env = {entry["name"]: entry for entry in model["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "prod-chat-secrets"
    assert "VLLM_API_KEY" not in env
