import json
from hashlib import sha256

import pytest
from promote_cases import CREATED, deployment, trial

from autotune.promote import Gate, Promotion, Target, render, serve_argv


def promotion() -> Promotion:
    made = deployment(trial(simulated=True), allow_simulated=True)
    return Promotion.of(
        made,
        render(made, [Target.SHELL]),
        targets=[Target.SHELL],
        argv=serve_argv(made),
        simulated_allowed=True,
    )


def test_a_promotion_tells_what_was_promoted() -> None:
    record = promotion()
    assert (record.name, record.study, record.trial, record.created_at) == ("prod-chat", "llama-chat", 7, CREATED)
    assert record.config_hash == trial().config.hash
    assert record.gate is Gate.NOT_RUN
    assert record.simulated
    assert record.simulated_allowed
    (file,) = render(deployment(trial(simulated=True), allow_simulated=True), [Target.SHELL])
    assert record.files[0].sha256 == sha256(file.text.encode()).hexdigest()


def test_its_document_survives_json() -> None:
    document = json.loads(json.dumps(promotion().as_document()))
    assert Promotion.from_document(document) == promotion()
    assert document["gate"] == "not run"


def test_a_document_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2"):
        Promotion.from_document({**promotion().as_document(), "schema": 2})
