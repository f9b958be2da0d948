import io
from dataclasses import replace

import pytest
from report_cases import measured, running, study
from rich.console import Console

from autotune.records import Caveat, Config, CpuUse, Estimate, GpuUse, LevelRole, LevelUse, ServerFacts, Value
from autotune.report.detail import trial_detail
from autotune.report.json_view import show_document, trial_document
from autotune.report.studies import StudyRow, studies_table
from autotune.report.tables import as_text, front_table, study_report, trials_table
from autotune.report.wording import (
    brief_latency,
    brief_rate,
    changes,
    ending,
    gain,
    latency,
    number,
    rate,
    seconds,
    share,
)
from autotune.search.pareto import front_of
from autotune.slo_text import parse_slo

HOSTILE = "[bold]x[/] :smile: \x1b[31mred\nnext"


def line_with(text: str, start: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return line


@pytest.mark.parametrize("wording", [brief_latency, brief_rate, gain, latency, number, rate, seconds, share])
def test_missing_is_a_dash(wording: object) -> None:
    assert wording(None) == "-"


def test_units_are_for_people() -> None:
    assert latency(Estimate(value=0.412, low=0.39, high=1.5)) == "412 ms [390 ms .. 1.5 s]"
    assert rate(Estimate(value=2400.4, low=2310, high=2480)) == "2,400 [2,310 .. 2,480]"
    assert rate(Estimate(value=2400.4)) == "2,400"
    assert brief_rate(Estimate(value=2000, low=1900, high=2060)) == "2,000 ±5 %"
    assert brief_latency(Estimate(value=0.4)) == "400 ms"
    assert [brief_latency(Estimate(value=x)) for x in (0.0, 0.00004, 0.0074, 0.0099, 0.00996)] == [
        *("0 ms", "0 ms", "7.4 ms", "9.9 ms", "10 ms"),
    ]
    assert (gain(1.25), gain(0.456), gain(1.0)) == ("+25 %", "-54 %", "+0 %")
    assert share(0.731) == "73.1 %"


def test_the_report_ends_a_study() -> None:
    text = as_text(study_report(study()))
    assert "Pick: trial 1 (knee, not yet validated): most throughput within ttft_p95<=500ms" in text
    assert "throughput per GPU +40 %, TTFT p95 -54 %" in text
    assert "7 trials: 4 measured, 1 infeasible, 1 faulted, 1 running" in text
    assert "1 faulted, 1 interrupted" in as_text(study_report(replace(study(), interrupted=True)))
    assert "Logs and requests lie in studies/llama-chat" in text
    front = as_text(front_table(study()))
    assert [front.index(f"{rate}") for rate in ("2,100", "2,600", "1,500")] == sorted(
        front.index(f"{rate}") for rate in ("2,100", "2,600", "1,500")
    )
    assert "2,000" not in front
    assert "baseline" in line_with(front, "0 ")
    assert "vLLM's defaults" in line_with(front, "0 ")


@pytest.mark.parametrize("simulated", [True, False])
def test_every_simulated_figure_is_marked(simulated: bool) -> None:
    view = study(simulated=simulated)
    for shown in (study_report(view), trials_table(view), trial_detail(view, view.trials[1])):
        text = as_text(shown)
        assert ("simulated" in text) is simulated
    assert ("SIMULATED" in as_text(study_report(view))) is simulated


def test_a_study_without_figures_says_so() -> None:
    empty = study(trials=(), front=(), pick=None)
    text = as_text(study_report(empty))
    assert "no front" in text
    assert "No pick: no trial was measured." in text
    assert "No trial has run yet" in as_text(trials_table(empty))


def test_failed_trials_show_their_class_and_no_figures() -> None:
    line = line_with(as_text(trials_table(study()), width=160), "4 ")
    assert "infeasible: kv_cache_too_small" in line
    assert line.split("  ").count("") > 3
    assert " 0 " not in line
    assert line.count(" - ") >= 2
    assert "running" in line_with(as_text(trials_table(study()), width=160), "6 ")


def test_show_has_all_the_evidence() -> None:
    view = study()
    long = "vllm serve m " + "--flag value " * 40
    text = as_text(trial_detail(view, view.trials[1], serve_line=long.strip(), log_path="a/server.log"), width=80)
    assert long.strip() in text  # in one piece, to be pasted
    folded = Console(file=io.StringIO(), width=40, record=True)
    folded.print(trial_detail(view, view.trials[1], serve_line=long.strip()))
    assert folded.export_text().replace("\n", " ").count("--flag value") == 40  # nothing is cut off there either
    for fact in (
        *("place", "pick, on the front", "--max-num-seqs 128", "2,100 [1,995 .. 2,205]", "410 ms [348 ms .. 471 ms]"),
        *("412,336 tokens", "12.58x", "a/server.log", "client_late", "pin the client", "launching  1 min 32 s"),
    ):
        assert fact in text, fact
    assert line_with(text, "preemptions").split() == ["preemptions", "-", "17"]  # one level of which nothing was said
    assert line_with(text, "prefix hits").split() == ["prefix", "hits", "-", "73.1", "%"]
    assert line_with(text, "queue time").split()[-2:] == ["-", "-"]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_table_is_cut_off(width: int) -> None:
    view = study(trials=(*study().trials, measured(7, 9000.0, 0.2, {"max-num-seqs": 96}, gpus=4)), front=(1, 2, 7))
    for shown in (front_table(view), trials_table(view), trial_detail(view, view.trials[1])):
        assert max(len(line) for line in as_text(shown, width=width).splitlines()) <= width
    for shown in (front_table(view), trials_table(view)):
        lines = as_text(shown, width=width).splitlines()
        at = next(line.index("settings") for line in lines if "settings" in line)
        assert "--max-num-batched-tokens16384--max-num-seqs512" in "".join("".join(line[at:] for line in lines).split())
    assert line_with(as_text(front_table(view), width=80), "7 ").split()[1:6] == ["4", "2,250", "±5", "%", "9,000"]
    assert "9,000" not in as_text(front_table(study()))


def test_energy_is_shown_per_thousand_tokens_only_where_it_was_read() -> None:
    view = study()
    trial = view.trials[1]
    assert trial.result is not None
    assert "J per 1,000 output tokens" not in as_text(trial_detail(view, trial))
    first, *others = trial.result.measurements
    read = replace(first, energy_j=75_000.0, output_tokens=50_000)
    shown = replace(trial, result=replace(trial.result, measurements=(read, *others)))
    # 75,000 J / 50,000 tokens = 1.5 J each; the other level was not read.
    row = line_with(as_text(trial_detail(view, shown)), "J per 1,000 output tokens")
    assert row.split()[5:] == ["1,500.0", *["-"] * len(others)]


def test_show_tells_what_went_wrong() -> None:
    view = study()
    text = as_text(trial_detail(view, view.trials[4]))
    for fact in ("kv_cache_too_small", "24 GiB is needed", "25769803776", "remedy 1", "raise gpu-memory-utilization"):
        assert fact in text
    assert "no line of the log says it" in as_text(trial_detail(view, view.trials[5]))
    assert "running" in as_text(trial_detail(view, running(6)))


def test_names_are_neither_markup_nor_terminal_codes() -> None:
    view = study(name=HOSTILE, model=HOSTILE, trials=(measured(0, 1.0, 1.0, {"x": HOSTILE}),), front=(0,))
    row = StudyRow(name=HOSTILE, model="m", workload="w", engine="process", simulated=False, state="running", done=0)
    for shown in (study_report(view), trial_detail(view, view.trials[0]), studies_table([row]), trials_table(view)):
        text = as_text(shown, width=300)
        assert "[bold]x[/] :smile: \\x1b[31mred\\nnext" in text
        assert "\x1b" not in text


def test_the_list_and_the_status() -> None:
    row = StudyRow(
        name="a", model="m", workload="chat", engine="process", simulated=False, state="running", done=3, measured=2,
        trial=3, phase="launching", elapsed_s=432.0,
    )  # fmt: skip
    text = as_text(studies_table([row]))
    assert "3 of -" in text
    assert "launching" not in text
    live = as_text(studies_table([replace(row, wanted=24)], live=True))
    assert "3 of 24" in live
    assert "7 min 12 s" in live
    assert line_with(live, "a ").rstrip().endswith("-")  # no pid is known
    assert "no study yet" in as_text(studies_table([]))
    assert "No study is running" in as_text(studies_table([], live=True))


def test_what_a_config_changes() -> None:
    trials = study().trials
    base = replace(trials[0].config, params=(("a", 1), ("b", True), ("c", None)))
    changed = replace(base, params=(("a", 2), ("b", False), ("env:X", True)))
    baseline = replace(trials[0], config=base, result=None)
    assert changes(changed, baseline) == ("--a 2", "--no-b", "X=1")
    assert changes(replace(base, params=(("a", 1),)), baseline) == ("b back to default",)
    assert changes(base, baseline) == ()


def test_a_default_written_out_is_no_change() -> None:
    trial = study().trials[0]
    assert trial.result is not None
    told = replace(trial.result, facts=ServerFacts(max_num_seqs=1024, gpu_memory_utilization=0.92))
    baseline = replace(trial, config=Config.of({}), result=told)
    spelled = Config.of({"max-num-seqs": 1024, "gpu-memory-utilization": 0.92, "tensor-parallel-size": 1})
    assert changes(spelled, baseline) == ()
    assert changes(Config.of({"max-num-seqs": 512}), baseline) == ("--max-num-seqs 512",)


def test_doubts_stand_beside_the_front() -> None:
    shown = as_text(study_report(study()))
    assert "Doubt client_late (trial 1): sent 12 ms late at p99. pin the client to free cores" in shown


def test_a_ramp_is_a_table_of_its_own() -> None:
    view = study()
    trial = view.trials[0]
    assert trial.result is not None
    level = trial.result.measurements[0]
    doubt = Caveat(code="too_few_samples", text="few", remedy="more")
    ramp = replace(level, level=replace(level.level, role=LevelRole.RAMP, concurrency=8), caveats=(doubt,))
    ramped = replace(trial, result=replace(trial.result, measurements=(ramp, *trial.result.measurements)))
    text = as_text(trial_detail(view, ramped))
    assert "Ramp that found the load" in text
    # Its doubts are not doubts about the trial's figures.
    assert "too_few_samples" not in text


def test_without_a_pick_the_nearest_is_named() -> None:
    shown = as_text(study_report(study(pick=None, slo=parse_slo("ttft_p95<=100ms"))))
    assert "No pick: no trial is sure to meet ttft_p95<=100ms" in shown
    assert "the nearest is trial 1 with 410 ms" in " ".join(shown.split())


def test_a_pick_that_changes_numerics_is_doubted() -> None:
    view = study()
    assert "answers_not_compared" not in as_text(study_report(view))
    picked = view.picked_trial
    assert picked is not None
    lossy = replace(picked, config=Config.of({**picked.config.as_dict(), "kv-cache-dtype": "fp8"}))
    trials = tuple(lossy if trial.number == picked.number else trial for trial in view.trials)
    shown = as_text(study_report(replace(view, trials=trials)))
    assert "Doubt answers_not_compared (trial 1): the pick stores its KV cache as fp8" in shown


def test_a_pick_that_serves_another_checkpoint_is_doubted() -> None:
    view = study()
    picked = view.picked_trial
    assert picked is not None

    def shown(**values: Value) -> str:
        config = Config.of({**picked.config.as_dict(), **values})
        trials = tuple(replace(t, config=config) if t.number == picked.number else t for t in view.trials)
        return " ".join(as_text(study_report(replace(view, trials=trials))).split())

    assert "answers_not_compared" not in shown(model=view.model)
    assert "the pick serves another checkpoint (org/m-awq), which can change answers" in shown(model="org/m-awq")
    both = shown(**{"model": "org/m-awq", "kv-cache-dtype": "fp8"})
    assert "serves another checkpoint (org/m-awq) and stores its KV cache as fp8, which can" in both


def test_names_to_copy_stay_in_one_piece() -> None:
    name = "llama-3.1-70b-instruct-chat-4xa100-80gb-nvlink"
    row = StudyRow(
        name=name,
        model="meta-llama/Llama-3.1-70B-Instruct",
        workload="chat",
        engine="simulated",
        simulated=True,
        state="finished",
        done=24,
        wanted=24,
    )
    assert name in as_text(studies_table([row]), width=80)


def test_what_gpus_and_cpus_did_is_shown_where_it_was_seen() -> None:
    view = study()
    trial = view.trials[1]
    assert trial.result is not None
    assert "What GPUs and CPUs did" not in as_text(trial_detail(view, trial))
    first, *others = trial.result.measurements
    use = LevelUse(
        gpus=(
            GpuUse(index=0, samples=9, busy_share=0.61, power_mean_w=500.0, nvlink_tx_bytes_per_s=12.5e9),
            GpuUse(index=1, samples=9, busy_share=0.97, power_mean_w=500.0),
        ),
        cpu=CpuUse(client_share=0.25, api_server_share=0.8, server_cores=3.21),
        jit_compiles=0,
    )
    shown = replace(trial, result=replace(trial.result, measurements=(replace(first, use=use), *others)))
    text = as_text(trial_detail(view, shown))
    assert "61.0 % .. 97.0 %" in line_with(text, "GPU busy")
    assert line_with(text, "GPU power, mean").split() == ["GPU", "power,", "mean", "500", "W", "-"]
    assert "12.50 GB/s" in line_with(text, "NVLink sent")
    assert "25.0 %" in line_with(text, "load client's CPU")
    assert "3.2" in line_with(text, "server's CPU, cores")
    assert line_with(text, "kernels compiled").split() == ["kernels", "compiled", "0", "-"]
    assert "PCIe" not in text
    document = show_document(view, shown)
    assert document["levels"][0]["use"]["gpus"][1]["busy_share"] == 0.97
    assert document["levels"][1]["use"] is None


def test_a_void_trial_says_why_and_is_on_no_front() -> None:
    trial = measured(1, 9000.0, 0.2, {"max-num-seqs": 96}, caveats=())
    assert trial.result is not None
    void = Caveat(code="client_busy", text="the load client took 99% of a core", remedy="cores", void=True)
    levels = tuple(replace(one, caveats=(void,)) for one in trial.result.measurements)
    spoilt = replace(trial, result=replace(trial.result, measurements=levels))
    assert ending(spoilt) == "measured, void: client_busy"
    view = study(trials=(study().trials[0], spoilt), front=(0,), pick=None)
    text = as_text(study_report(view))
    assert "2 trials: 2 measured (1 of them void: the load client was the limit)" in text
    assert "Doubt client_busy (trial 1)" in text
    alone = as_text(study_report(study(trials=(spoilt,), front=(), pick=None)))
    assert "No pick: in every trial that was measured the load client was the limit" in alone
    document = trial_document(view, spoilt)
    assert (document["outcome"], document["reason"]) == ("measured", "client_busy")
    assert document["caveats"][0]["void"] is True
    assert front_of((study().trials[0], trial)) != front_of((study().trials[0], spoilt)) == (0,)
