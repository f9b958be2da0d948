"""What `measure` shows: loads side by side, and nothing invented for what was not measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from report_cases import latency, level
from test_report_tables import line_with

from autotune.records import ArrivalCheck, Arrivals, Caveat, Estimate, LevelRole, ServerFacts
from autotune.report.measured import MeasuredServer, measured_document, measured_report
from autotune.report.tables import as_text
from autotune.slo_text import parse_slo

DOUBT = Caveat(code="aborted", text="stopped", remedy="wait")


def server(**changes: Any) -> MeasuredServer:
    one = level(
        LevelRole.THROUGHPUT,
        total_tok_s=Estimate(value=9000.0),
        output_tok_s=Estimate(value=3000.0, low=2900.0, high=3060.0),
        request_rps=Estimate(value=12.5),
        ttft_s=latency(0.4),
    )
    base = MeasuredServer(
        url="http://127.0.0.1:8000",
        model="m",
        workload="chat",
        seed=7,
        measurements=(one, level(LevelRole.TTFT)),
        planned_levels=2,
        facts=ServerFacts(max_model_len=8192),
    )
    return replace(base, **changes)


def test_loads_stand_side_by_side_with_throughput_and_ttft() -> None:
    text = as_text(measured_report(server()))
    row = line_with(text, "64 in flight").split()
    assert row[3:7] == ["9,000", "3,000", "±3", "%"]
    assert "12.50" in row
    assert line_with(text, "poisson 4.25/s").split()[2:] == ["-", "-", "-", "-", "-", "-", "2"]
    assert "per GPU" not in text
    assert "simulated" not in text


def test_figures_per_gpu_and_the_limit_only_where_asked() -> None:
    text = as_text(measured_report(server(gpus=4, slo=parse_slo("ttft_p95<=500ms"))), width=140)
    assert "750" in line_with(text, "64 in flight")
    assert line_with(text, "64 in flight").split()[-1] == "met"
    assert line_with(text, "poisson").split()[-1] == "-"
    strict = as_text(measured_report(server(slo=parse_slo("300ms"))))
    assert line_with(strict, "64 in flight").split()[-1] == "missed"


def test_simulated_figures_are_marked() -> None:
    text = as_text(measured_report(server(facts=ServerFacts(simulated=True))))
    titles = [line for line in text.splitlines() if line.startswith(("Measured", "Throughput", "Figures"))]
    assert len(titles) == 3
    assert all("(simulated)" in line for line in titles)


def test_the_document_is_json_and_says_whether_it_is_whole() -> None:
    found = server(gpus=2)
    document = json.loads(json.dumps(measured_document(found)))
    assert document["schema"] == 1
    assert document["complete"] is True
    assert document["levels"][0]["output_tok_s_per_gpu"] == 1500.0
    assert document["levels"][1]["output_tok_s_per_gpu"] is None
    assert document["levels"][0]["meets_slo"] is None
    assert measured_document(replace(found, planned_levels=3))["complete"] is False
    cut = replace(found.measurements[1], caveats=(DOUBT,))
    assert measured_document(replace(found, measurements=(found.measurements[0], cut)))["complete"] is False


def test_names_of_a_foreign_server_move_no_cursor() -> None:
    text = as_text(measured_report(server(model="[bold]\x1b[31m", facts=ServerFacts(vllm_version="1\x1b[0m"))))
    assert "\x1b" not in text
    assert "[bold]" in text


def test_doubts_name_their_level() -> None:
    doubted = replace(level(LevelRole.TTFT), caveats=(DOUBT,))
    text = as_text(measured_report(server(measurements=(doubted,), caveats=(replace(DOUBT, code="uncalibrated"),))))
    assert "ttft: stopped" in line_with(text, "aborted")
    assert line_with(text, "uncalibrated").split()[1] == "stopped"


def test_what_was_sent_stands_beside_what_was_asked() -> None:
    check = ArrivalCheck(
        asked_rate_rps=4.25,
        sent_rate_rps=4.125,
        asked_cv=2.0,
        cv=1.75,
        asked_dispersion=None,
        dispersion=None,
        lateness_p50_s=0.0002,
        lateness_p99_s=0.25,
        waited=3,
    )
    gamma = level(LevelRole.TTFT, arrivals=check)
    gamma = replace(gamma, level=replace(gamma.level, arrivals=Arrivals.GAMMA, cv=2.0))
    found = server(measurements=(server().measurements[0], gamma))
    text = as_text(measured_report(found), width=140)
    assert "gamma (cv 2) 4.25/s" in text
    assert line_with(text, "requests/s sent / asked").split()[-4:] == ["-", "4.12", "/", "4.25"]
    assert line_with(text, "gaps' deviation").split()[-3:] == ["1.75", "/", "2.00"]
    assert "250 ms" in line_with(text, "sent late")
    assert line_with(text, "turns that waited").split()[-1] == "3"
    assert "dispersion" not in text
    closed, opened = measured_document(found)["levels"]
    assert closed["arrival_check"] is None
    assert (opened["cv"], opened["arrival_check"]["sent_rate_rps"], opened["arrival_check"]["waited"]) == (
        2.0,
        4.125,
        3,
    )
    ramp = replace(gamma, level=replace(gamma.level, arrivals=Arrivals.RAMP, cv=None, ramp_from=0.5, ramp_to=2.0))
    assert "ramp (0.5 to 2) 4.25/s" in as_text(measured_report(server(measurements=(ramp,))))
