import json
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from promote_cases import CREATED, deployment, gate_record, trial

from autotune.errors import NotPromotable, UnknownName
from autotune.promote import Entry, Offered, Promotion, Target, render, serve_argv
from autotune.promote.history import before, current_of, entries, named
from autotune.records import Config, GateVerdict
from autotune.store.study_record import PromotionRecord

V1_DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "name": "old",
    "created_at": "2026-01-02T03:04:05+00:00",
    "study": "s",
    "trial": 3,
    "config_hash": "abc",
    "model": "m",
    "vllm_version": "0.30.0",
    "targets": ["shell"],
    "files": [{"path": "old.sh", "sha256": "00"}],
    "argv": ["vllm", "serve", "m"],
    "simulated": False,
    "simulated_allowed": False,
    "gate": "not run",
}
"""As 0.1 stored them."""


def promotion(name: str = "prod-chat", **changes: Any) -> Promotion:
    made = deployment(
        trial(simulated=True), allow_simulated=True, gate=gate_record(), author="ada", reason="faster", name=name
    )
    found = Promotion.of(
        made,
        render(made, [Target.SHELL]),
        targets=[Target.SHELL],
        argv=serve_argv(made),
        simulated_allowed=True,
        slo="ttft_p95<=500ms",
        offered=Offered(rate_rps_per_gpu=2.0, prompt_tokens_mean=512.0),
    )
    return replace(found, **changes)


def record(of: Promotion, directory: str = "/deploy") -> PromotionRecord:
    return PromotionRecord(
        study=of.study,
        trial=of.trial,
        created_at=of.created_at,
        targets=of.targets,
        directory=directory,
        simulated=of.simulated,
        details=json.loads(json.dumps(of.as_document())),
    )


def history(*promotions: Promotion) -> tuple[Entry, ...]:
    return entries(map(record, promotions))


def test_a_promotion_tells_what_was_promoted() -> None:
    found = promotion()
    assert (found.name, found.study, found.trial, found.created_at) == ("prod-chat", "llama-chat", 7, CREATED)
    assert (found.author, found.reason, found.slo) == ("ada", "faster", "ttft_p95<=500ms")
    assert found.config_hash == trial().config.hash
    assert found.config == Config.of({"enable-prefix-caching": False, "max-num-seqs": 128, "tensor-parallel-size": 2})
    assert found.gate is not None
    assert found.gate.verdict is GateVerdict.PASSED
    assert found.simulated
    assert found.simulated_allowed
    assert found.output_tok_s_per_gpu is not None
    assert found.output_tok_s_per_gpu.low == 1150.0
    (file,) = found.rendered()
    assert found.files[0].sha256 == sha256(file.text.encode()).hexdigest()
    assert file.mode == 0o755


def test_its_document_survives_json() -> None:
    document = json.loads(json.dumps(promotion().as_document()))
    assert Promotion.from_document(document) == promotion()
    assert document["gate"]["verdict"] == "pass"


def test_a_document_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 3"):
        Promotion.from_document({**promotion().as_document(), "schema": 3})


def test_what_the_first_version_stored_is_still_read() -> None:
    found = Promotion.from_document(V1_DOCUMENT)
    assert (found.name, found.trial, found.gate, found.author) == ("old", 3, None, "")
    with pytest.raises(NotPromotable, match=r"without its files \(old.sh\)"):
        found.rendered()


def test_versions_count_within_a_name() -> None:
    found = history(promotion("a"), promotion("b"), promotion("a"), promotion("a@2"))
    assert [entry.label for entry in found] == ["a@1", "b@1", "a@2", "a@2@1"]
    assert [entry.label for entry in current_of(found)] == ["a@2", "b@1", "a@2@1"]


@pytest.mark.parametrize(
    ("text", "label"),
    [("a", "a@3"), ("a@1", "a@1"), ("a@current", "a@3"), ("a@previous", "a@2"), ("x@y", "x@y@1"), ("x@y@1", "x@y@1")],
)
def test_a_promotion_is_named_by_deployment_and_version(text: str, label: str) -> None:
    assert named(history(promotion("a"), promotion("a"), promotion("a"), promotion("x@y")), text).label == label


@pytest.mark.parametrize("text", ["b", "a@0", "a@3", "a@x", "a@", "@1", "a@²"])
def test_a_name_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnknownName) as refused:
        named(history(promotion("a"), promotion("a")), text)
    assert refused.value.exit_code == 34


def back_to(version: int, of: Promotion) -> Promotion:
    return of.restored(version, created_at=CREATED + timedelta(days=1), author="bob", reason="slow")


def test_a_rollback_is_a_version_with_the_same_files() -> None:
    first = promotion()
    back = back_to(1, first)
    assert (back.restores, back.author, back.reason) == (1, "bob", "slow")
    assert back.rendered() == first.rendered()
    assert (back.gate, back.trial) == (first.gate, first.trial)


def test_going_back_again_goes_further_back_and_not_forth() -> None:
    one, two, three = promotion(), promotion(), promotion()
    assert before(history(one, two, three)).version == 2
    rolled = history(one, two, three, back_to(2, two))
    assert rolled[-1].effective == 2
    assert before(rolled).version == 1
    newer = history(one, two, three, back_to(2, two), promotion())
    assert before(newer).version == 3  # the last that was promoted, though it was rolled back from


def test_nothing_lies_before_the_first() -> None:
    with pytest.raises(NotPromotable, match="no earlier one") as only:
        before(history(promotion()))
    assert "promoted once" in str(only.value.hint)
    assert "--to" not in str(only.value.hint)
    one, two = promotion(), promotion()
    with pytest.raises(NotPromotable, match="in effect as version 1") as back:
        before(history(one, two, back_to(1, one)))
    assert "a rollback reaches a later one by --to VERSION" in str(back.value.hint)
