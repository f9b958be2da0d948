"""Helm values, read as the chart reads them: `rendered` is what vllm-stack 0.1.16 makes of the keys that we write."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from promote_cases import NODE, deployment, trial, undollared

from autotune.errors import NotPromotable
from autotune.promote import Deployment, Target, render, serve_argv
from autotune.records import ServerFacts

# The chart's own declarations (values.schema.json): what a key may be.
ENGINE_KEYS = {
    "containerPort": int,
    "imagePullPolicy": str,
    "securityContext": dict,
    "containerSecurityContext": dict,
    "strategy": dict,
    "startupProbe": dict,
    "livenessProbe": dict,
    "readinessProbe": dict,
    "vllmApiKey": dict,
    "runtimeClassName": str,
    "modelSpec": list,
}
MODEL_KEYS = {
    "name": str,
    "annotations": dict,
    "podAnnotations": dict,
    "repository": str,
    "tag": str,
    "modelURL": str,
    "replicaCount": int,
    "requestCPU": int,
    "requestMemory": str,
    "requestGPU": int,
    "pvcStorage": str,
    "pvcAccessMode": list,
    "vllmConfig": dict,
    "env": list,
    "shmSize": str,
    "extraVolumes": list,
    "extraVolumeMounts": list,
}
VLLM_KEYS = {"enablePrefixCaching": bool, "tensorParallelSize": int, "extraArgs": list}
RELEASE = "r" * 18
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)


def values_of(made: Deployment) -> dict[str, Any]:
    (file,) = render(made, [Target.HELM])
    return yaml.safe_load(file.text)


def model_of(made: Deployment) -> dict[str, Any]:
    (model,) = values_of(made)["servingEngineSpec"]["modelSpec"]
    return model


def rendered(values: dict[str, Any], release: str = RELEASE) -> dict[str, Any]:
    """The chart's Deployment, template by template, of the keys that we use."""
    engine = values["servingEngineSpec"]
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
                "resources": {"requests": {**amounts, **gpus}, **({"limits": gpus} if gpus else {})},
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
    values = values_of(made)
    assert set(values) == {"servingEngineSpec"}
    engine = values["servingEngineSpec"]
    for keys, found in ((ENGINE_KEYS, engine), (MODEL_KEYS, model_of(made)), (VLLM_KEYS, model_of(made)["vllmConfig"])):
        for key, value in found.items():
            assert type(value) is keys[key], key
    assert all(isinstance(word, str) for word in model_of(made)["vllmConfig"]["extraArgs"])


@pytest.mark.parametrize("made", CASES)
def test_what_the_chart_makes_of_it_is_a_deployment(made: Deployment) -> None:
    found = rendered(values_of(made))
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)
    pod = found["spec"]["template"]["spec"]
    assert len(pod["hostname"]) <= 63
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
