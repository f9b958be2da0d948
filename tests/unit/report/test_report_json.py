import json
from dataclasses import replace

from report_cases import running, study

from autotune.records import Caveat, Outcome
from autotune.report.json_view import show_document, study_document, trial_document
from autotune.report.wording import ending


def test_the_documented_keys_are_there() -> None:
    document = study_document(study())
    assert {"schema", "study", "engine", "simulated", "trials", "infeasible", "front", "baseline", "pick"} <= set(
        document
    )
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    for trial in document["trials"]:
        assert {"number", "flags", "outcome", "reason", "output_tok_s", "output_tok_s_per_gpu", "ttft_p95_s"} <= set(
            trial
        )
    assert (document["study"], document["engine"], document["simulated"]) == ("llama-chat", "process", False)
    assert [trial["number"] for trial in document["trials"]] == [0, 1, 2, 3, 4, 5, 6]
    assert [trial["number"] for trial in document["infeasible"]] == [4]
    assert [trial["number"] for trial in document["front"]] == [1, 2]
    assert document["baseline"]["number"] == 0


def test_figures_come_with_their_intervals() -> None:
    trial = study_document(study())["trials"][1]
    assert trial["output_tok_s"] == 2100.0
    assert trial["output_tok_s_interval"] == [1995.0, 2205.0]
    assert trial["ttft_p95_s"] == 0.41
    assert trial["flags"] == {"enable-prefix-caching": True, "max-num-seqs": 128}
    assert trial["caveats"][0]["code"] == "client_late"


def test_what_is_missing_is_null_and_never_zero() -> None:
    view = study()
    failed = study_document(view)["trials"][4]
    assert failed["outcome"] == "infeasible"
    assert failed["reason"] == "kv_cache_too_small"
    for name in ("output_tok_s", "output_tok_s_per_gpu", "ttft_p95_s"):
        assert failed[name] is None
        assert failed[f"{name}_interval"] is None
    assert trial_document(view, running(6))["outcome"] == "running"
    assert trial_document(replace(view, interrupted=True), running(6))["outcome"] == "interrupted"


def test_per_gpu_and_node_total_differ_by_the_gpus_used() -> None:
    view = study()
    trial = replace(view.trials[1], gpus=4)
    document = trial_document(view, trial)
    assert document["output_tok_s"] == 4 * document["output_tok_s_per_gpu"] == 2100.0
    assert document["output_tok_s_per_gpu_interval"] == [1995.0 / 4, 2205.0 / 4]


def test_the_pick_says_why() -> None:
    pick = study_document(study())["pick"]
    assert (pick["number"], pick["rule"], pick["reason"]) == (1, "knee", "most throughput within ttft_p95<=500ms")
    assert pick["throughput_gain"] == 1.4
    assert study_document(study(pick=None))["pick"] is None
    assert study_document(study(trials=(), front=(), baseline=0))["baseline"] is None


def test_simulated_is_said_of_the_study_and_of_each_trial() -> None:
    document = study_document(study(simulated=True))
    assert document["simulated"] is True
    assert all(trial["simulated"] for trial in document["front"])
    assert document["front"][0]["clock"] == "virtual"


def test_show_has_all_the_evidence() -> None:
    view = study()
    document = show_document(view, view.trials[1], serve_line="vllm serve m", log_path="a/server.log")
    assert json.loads(json.dumps(document)) == document
    assert document["serve"] == "vllm serve m"
    assert document["log"] == "a/server.log"
    assert document["resolved"]["kv_cache_tokens"] == 412_336
    assert document["resolved"]["max_num_seqs"] is None
    assert document["phase_seconds"] == {"launching": 92.0, "measuring": 140.0}
    level = document["levels"][1]
    assert level["ttft_s"]["p95"] == 0.41
    assert level["ttft_s"]["p99_interval"] is None
    assert level["server"]["prefix_hit_share"] == 0.731
    assert level["errors"] == {"timeout": 2}
    failure = show_document(view, view.trials[4])["failure"]
    assert failure["class"] == "kv_cache_too_small"
    assert failure["facts"] == {"needed_kv_bytes": 25769803776}


def test_an_abandoned_trial_says_what_for() -> None:
    slow = Caveat(code="too_slow", text="cut off after 600 s", remedy="raise the deadline")
    trial = study().trials[0]
    assert trial.result is not None
    abandoned = replace(trial, result=replace(trial.result, outcome=Outcome.ABANDONED, caveats=(slow,)))
    assert trial_document(study(), abandoned)["reason"] == "too_slow"
    assert ending(abandoned) == "abandoned: too_slow"
    assert trial_document(study(), trial)["reason"] is None
