"""A real Prometheus that reads the service as docker/prometheus.yml tells it to; skipped where the machine has none."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from autotune_command import wait_for
from loopback import kept_port
from served_command import STUDY, Service

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="no prometheus on this machine (Debian's package of that name)",
)

FILE = Path(__file__).parents[2] / "docker" / "prometheus.yml"
TOKEN = "f" * 40
TRIALS = 2
END_S = 10.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One that asks for a token and has run a study."""
    found = Service(tmp_path_factory.mktemp("service"), env={"AUTOTUNE_TOKEN": TOKEN})
    try:
        assert found.ask("/api/v1/studies", STUDY | {"trials": TRIALS}, token=TOKEN)[0] == 202
        jobs = lambda: found.ask("/api/v1/jobs", token=TOKEN)[1]["jobs"]  # noqa: E731 - asked again and again
        wait_for(lambda: jobs()[0]["state"] == "finished", "the end of the study")
        yield found
    finally:
        found.running.give_up()


class Prometheus:
    """A running one, with the file as it is shipped but for where the service and its token are."""

    def __init__(self, folder: Path, service: Service, token: str) -> None:
        (folder / "token").write_text(token)
        text = FILE.read_text(encoding="utf-8")
        for there, here in (
            ("/run/secrets/autotune_token", str(folder / "token")),
            ("service:8321", service.url.removeprefix("http://")),
            ("scrape_interval: 15s", "scrape_interval: 1s"),
        ):
            assert text.count(there) == 1
            text = text.replace(there, here)
        self.file = folder / "prometheus.yml"
        self.file.write_text(text, encoding="utf-8")
        self._kept = kept_port()
        address = f"127.0.0.1:{self._kept.getsockname()[1]}"
        self.url = f"http://{address}/api/v1"
        command = ["prometheus", f"--config.file={self.file}", f"--storage.tsdb.path={folder / 'data'}"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=log, cwd=folder)

    def ask(self, path: str, **query: str) -> Any:
        """Its answer; None while it does not listen yet."""
        try:
            with urllib.request.urlopen(f"{self.url}/{path}?{urllib.parse.urlencode(query)}", timeout=120) as answer:
                return json.loads(answer.read())["data"]
        except (urllib.error.URLError, ConnectionError):
            return None

    def target(self) -> dict[str, Any] | None:
        """The service as it saw it, once it has looked."""
        found = (self.ask("targets") or {}).get("activeTargets", [])
        return found[0] if found and found[0]["health"] != "unknown" else None

    def figures(self, query: str, label: str) -> dict[str, float]:
        """Values of a query by one of its labels."""
        found = (self.ask("query", query=query) or {}).get("result", [])
        return {one["metric"].get(label, ""): float(one["value"][1]) for one in found}

    def end(self) -> None:
        self._kept.close()
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def begun() -> Iterator[list[Prometheus]]:
    found: list[Prometheus] = []
    yield found
    for one in found:
        one.end()


def test_it_reads_the_figures_of_a_study_with_the_token(
    tmp_path: Path, service: Service, begun: list[Prometheus]
) -> None:
    begun.append(prometheus := Prometheus(tmp_path, service, TOKEN))
    checked = subprocess.run(["promtool", "check", "config", str(prometheus.file)], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    target = wait_for(prometheus.target, "its first look")
    assert (target["health"], target["lastError"]) == ("up", "")
    measured = wait_for(lambda: prometheus.figures('autotune_trials{study="s"}', "outcome"), "the figures")
    assert measured == {"measured": TRIALS, "infeasible": 0, "abandoned": 0, "faulted": 0}
    trials = service.ask("/api/v1/studies/s/trials", token=TOKEN)[1]["trials"]
    best = max(trial["output_tok_s_per_gpu"] for trial in trials)
    assert prometheus.figures("autotune_best_output_tokens_per_second_per_gpu", "simulated") == {"true": best}
    fastest = min(trial["ttft_p95_s"] for trial in trials)
    assert prometheus.figures("autotune_best_ttft_p95_seconds", "simulated") == {"true": fastest}
    assert prometheus.figures("autotune_studies > 0", "state") == {"finished": 1}
    assert prometheus.figures("autotune_jobs > 0", "state") == {"finished": 1}
    assert prometheus.figures("autotune_gpu_seconds_total > 0", "study").keys() == {"s"}


def test_it_sees_why_a_wrong_token_is_refused(tmp_path: Path, service: Service, begun: list[Prometheus]) -> None:
    begun.append(prometheus := Prometheus(tmp_path, service, "x" * 40))
    target = wait_for(prometheus.target, "its first look")
    assert target["health"] == "down"
    assert "401" in target["lastError"]


def test_the_names_of_the_metrics_are_as_prometheus_wants_them(service: Service) -> None:
    request = urllib.request.Request(f"{service.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read()
    assert b"autotune_build_info" in text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")
