"""The service's page in a browser: every view, live, with the limit moved, a promotion made and a token asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe
import made_studies
import pytest
from playwright.sync_api import expect
from serving import served
from shown import ready
from sizes import PHONE

from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyState
from autotune.web.pages import static_files
from autotune.web.queue import PROGRAM
from autotune.web.settings import ServeSettings
from autotune.web.tokens import hashed

Looking = Callable[..., Any]
REFUSED = "Failed to load resource"
"""What the browser itself says of an answer that a test asks for on purpose."""


@pytest.fixture(scope="module")
def own(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A copy of the database that these tests may write to; named, as one that is shared by nodes would be."""
    root = tmp_path_factory.mktemp("service")
    shutil.copy(places.database, root / "named.db")
    return Places(root=root, storage=str(root / "named.db"))


@pytest.fixture(scope="module")
def service(own: Places) -> Iterator[str]:
    with served(ServeSettings(places=own, stop_s=10.0)) as address:
        yield address


def test_the_list_leads_to_a_study_and_back(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/"))
    rows = page.locator("ul.rows > li")
    expect(rows).to_have_count(11)
    row = page.locator("ul.rows a[href='/studies/infeasible']")
    expect(page.locator("ul.rows > li", has_text="6 infeasible")).to_contain_text("6 of 6")
    expect(page.locator("[role=progressbar][aria-valuenow='9']")).to_have_count(3)
    page.locator("input[type=search]").fill("usual")
    expect(rows).to_have_count(1)
    page.locator("input[type=search]").fill("")
    row.click()
    page.locator("h1", has_text="infeasible").wait_for()
    page.locator("text=No trial could be measured").wait_for()
    page.go_back()
    page.locator("h1", has_text="Studies").wait_for()


def test_the_address_keeps_trial_and_limit(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/studies/usual/trials/2"))
    page.locator("dialog[open] >> text=Trial 2").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_url(f"{service}/studies/usual")
    page.locator("#limit").fill("330")
    page.locator("#limit").press("Enter")
    page.wait_for_url(f"{service}/studies/usual?ttft_p95=330ms")
    page.reload()
    page.locator(".verdict h2", has_text="No config meets it").wait_for()
    page.locator("#limit").fill("340")
    page.locator("#limit").press("Enter")
    expect(page.locator(".verdict")).to_contain_text("Pick: trial 1")


def test_what_a_running_study_measures_appears_by_itself(looking: Looking, service: str, own: Places) -> None:
    page = ready(looking(f"{service}/studies/one"))
    expect(page.locator("figure .mark[data-number]")).to_have_count(1)
    page.evaluate("window.same = true")
    page.locator("summary", has_text="configs with figures").click()
    table = page.locator("details", has_text="configs with figures").first.locator("tbody tr")
    expect(table).to_have_count(1)
    page.locator(".mark[data-number='0']").focus()
    with Store.open(own.database) as store:
        made_studies.add_trial(store, "one", made_studies.measured(2600, 0.31), {"max-num-seqs": 512})
    page.locator("h2", has_text="Pick: trial 1").wait_for()
    expect(page.locator(".mark.k-pick[data-number='1']")).to_have_count(1)
    expect(table).to_have_count(2)  # still open
    expect(page.locator(".mark[data-number='0']")).to_be_focused()
    assert page.evaluate("window.same") is True  # without loading the page again
    with Store.open(own.database) as store:
        store.set_study_state("one", StudyState.FINISHED)
    page.locator(".head .tag", has_text="finished").wait_for()


def test_a_new_study_is_refused_with_the_reason_beside_the_field(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/new", expected=(REFUSED,)))
    page.locator("button", has_text="Begin").click()
    expect(page.locator("#new-model-wrong")).to_have_text("A study needs a model.")
    page.locator("#new-model").fill("meta-llama/Llama-3.1-8B-Instruct")
    page.locator("#new-slo").fill("fast")
    page.locator("button", has_text="Begin").click()
    page.locator("#new-slo-wrong", has_text="ttft_p95<=500ms").wait_for()
    expect(page.locator("#new-executor option")).to_have_text(["local", "ray"])
    expect(page.locator("#new-parallel option")).to_have_text(["one on a node", "auto"])
    expect(page.locator("#new-ray_address option")).to_have_text(["auto"])  # the operator has allowed no other
    expect(page.locator("#new-slo")).to_have_attribute("aria-invalid", "true")
    assert axe.violations(page) == []


def test_a_study_begun_on_the_page_runs_and_shows_its_pick(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/new", expected=(REFUSED,)))
    page.locator("#new-model").fill("meta-llama/Llama-3.1-8B-Instruct")
    page.locator("#new-workload").select_option("tiny")
    page.locator("#new-space").select_option("scheduler")
    for key, value in (("trials", "2"), ("repeats", "0"), ("name", "begun-here")):
        page.locator(f"#new-{key}").fill(value)
    page.locator("button", has_text="Begin").click()
    page.wait_for_url(f"{service}/studies/begun-here")
    page.locator(".tag", has_text="finished").first.wait_for(timeout=300_000)
    page.locator(".verdict h2", has_text="Pick: trial").wait_for()
    expect(page.locator("p.simulated")).to_be_visible()
    expect(page.get_by_role("button", name="Ten more trials")).to_be_visible()
    page.goto(f"{service}/queue")
    row = page.locator("tbody tr", has_text="begun-here")
    row.locator("text=finished").wait_for()
    row.locator("button", has_text="Log").click()
    page.locator("dialog[open] pre", has_text="Pick: trial").wait_for()


def begin_verifying(page: Any, *, launches: int) -> None:
    page.locator("#promote-launches").fill(str(launches))
    page.locator("dialog pre", has_text="services:").first.wait_for()
    page.locator("button", has_text="Verify and promote").click()


@contextmanager
def standing_still(own: Places) -> Iterator[None]:
    """The job that runs gets no further until it was told to end."""
    jobs = json.loads((Path(own.root) / ".service" / "jobs.json").read_text())["jobs"]
    (pid,) = [job["pid"] for job in jobs if job["state"] == "running"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        assert any(_is_told_to_end(pid) or time.sleep(0.01) for _ in range(10_000))
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_told_to_end(pid: int) -> bool:
    """Whether TERM waits for the process to go on."""
    told = 1 << (signal.SIGTERM - 1)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) & told for line in lines if line.startswith(("SigPnd", "ShdPnd")))


def test_a_trial_is_verified_on_the_page_stopped_and_verified_again_and_its_whole_record_is_there(
    looking: Looking, service: str, own: Places
) -> None:
    begun = (
        "study",
        "--name",
        "verified",
        "--trials",
        "1",
        "--repeats",
        "0",
        "--workload",
        "tiny",
        "--space",
        "scheduler",
    )
    model = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--engine", "simulated", "--node", "1xH100-80GB")
    where = ("--studies-dir", str(own.root), "--storage", str(own.storage))
    subprocess.run([*PROGRAM, *begun, *model, *where], check=True, capture_output=True, timeout=600)
    page = ready(looking(f"{service}/studies/verified/trials/0"))
    page.locator("dialog[open] button", has_text="Promote …").click()
    page.locator("#promote-simulated").check()
    stop = page.locator("dialog button", has_text="Stop the verification")
    going = page.locator("section[aria-label='Verification']")
    page.locator("#promote-most").fill("100")
    begin_verifying(page, launches=100)
    expect(going.locator("pre")).to_contain_text("gate: launch 1 of 100", timeout=300_000)
    with standing_still(own):
        stop.click()
    expect(going.get_by_role("status")).to_have_text("stopped the verification was stopped; nothing was promoted")
    expect(going).to_contain_text("Nothing was written.")
    expect(going.locator("text=It goes on when this is closed")).to_be_hidden()
    expect(stop).to_be_hidden()
    assert axe.violations(page) == []
    assert page.evaluate("fetch('/api/v1/promotions').then(answer => answer.json())")["promotions"] == []
    page.locator("#promote-most").fill("2")
    begin_verifying(page, launches=2)
    expect(going.locator("pre")).to_contain_text("gate: launch 1 of 2", timeout=300_000)
    record = going.locator(".gate").first
    expect(record.locator(".tag").first).to_have_text(re.compile("gate (passed|failed|inconclusive)"), timeout=300_000)
    expect(record).to_contain_text("SIMULATED")
    expect(record.get_by_role("row", name=re.compile("^no failed request held"))).to_have_count(1)
    record.locator("summary").click()
    assert axe.violations(page) == []
    expect(record.get_by_role("row", name=re.compile(r"^[12] · [AB] .*answered, [\d,]+ tokens"))).to_have_count(2)
    expect(record.get_by_role("row", name=re.compile(r"^[12] · [AB] throughput .* to "))).to_have_count(
        2
    )  # an interval
    expect(record).to_contain_text("Quality guard")
    expect(stop).to_be_hidden()
    page.goto(f"{service}/studies/verified/trials/0")
    expect(page.locator("dialog[open] h3", has_text="Verified against what ran (verification 2)")).to_be_visible()


def test_a_promotion_is_previewed_made_and_rolled_back(looking: Looking, service: str, own: Places) -> None:
    page = ready(looking(f"{service}/studies/simulated"))
    for number, seen in ((1, 1), (4, 2)):
        page.goto(f"{service}/studies/simulated/trials/{number}")
        page.locator("dialog[open] button", has_text="Promote …").click()
        page.locator("#promote-name").fill("prod-chat")
        expect(page.locator("dialog[open] button.primary")).to_be_disabled()
        page.locator("#promote-simulated").check()
        page.locator("dialog pre", has_text="max-num-seqs").first.wait_for()
        tab = page.locator("[role=tab]", has_text="prod-chat.compose.yaml")
        expect(tab).to_have_attribute("aria-selected", "true")
        if seen == 2:
            page.locator("dialog table", has_text="prod-chat@1").wait_for()
            assert axe.violations(page) == []
        page.locator("#promote-reason").fill("half the TTFT")
        page.locator("#promote-skip").check()
        page.locator("button", has_text="Promote without the gate").click()
        page.locator("dialog a", has_text=f"prod-chat@{seen}").wait_for(timeout=300_000)
        page.locator("dialog .tag", has_text="gate skipped").wait_for()
    page.locator("dialog a", has_text="prod-chat@2").click()
    latest = page.locator("article[aria-label='prod-chat@2']")
    latest.locator("text=runs today").wait_for()
    expect(latest).to_contain_text("half the TTFT")
    latest.locator("button", has_text="Against version 1").click()
    page.locator("dialog .diff .plus", has_text="512").first.wait_for()
    page.keyboard.press("Escape")
    latest.locator("button", has_text="Roll back").click()
    page.locator("dialog #rollback-reason").fill("too slow")
    page.locator("dialog[open] button.primary").click()
    page.locator("article[aria-label='prod-chat@3'] >> text=back to version 1").wait_for()
    assert axe.violations(page) == []
    page.goto(f"{service}/studies/simulated")
    page.locator(".legend", has_text="runs today (prod-chat@3)").wait_for()


def test_the_queue_stands_in_the_order_in_which_it_runs(looking: Looking, service: str) -> None:
    page = looking(f"{service}/login")
    order = """async (jobs) => {
        const { inOrder } = await import('/static/js/queue.js');
        return inOrder(jobs).map((job) => job.id);
    }"""
    newest_first = [
        {"id": "f", "state": "queued", "position": 3},
        {"id": "e", "state": "finished", "position": None},
        {"id": "d", "state": "queued", "position": 2},
        {"id": "c", "state": "running", "position": None},
        {"id": "b", "state": "interrupted", "position": 1},
        {"id": "a", "state": "failed", "position": None},
    ]
    assert page.evaluate(order, newest_first) == ["c", "b", "d", "f", "e", "a"]


def test_what_became_of_the_answers_stands_beside_the_figures(looking: Looking, service: str, own: Places) -> None:
    with Store.open(own.database) as store:
        made_studies.guarded(store)
    page = ready(looking(f"{service}/studies/guarded"))
    launches = page.locator("section", has=page.locator("h2#launches"))
    expect(launches.locator("thead")).to_contain_text("answers")
    cells = launches.locator("tbody tr td:nth-child(5)")
    expect(cells).to_have_text(["reference", "held 88% alike", "LOST 21% alike", "–"])
    page.locator(".mark[data-number='2']").focus()
    expect(page.locator("section.hero .tip")).to_contain_text("answersLOST, 21% alike")
    expect(page.locator(".verdict h2")).to_contain_text("Pick: trial 1")  # not the fastest, whose answers differ
    page.goto(f"{service}/studies/guarded/trials/2")
    part = page.locator("dialog[open] section", has=page.locator("h3", has_text="Answers"))
    expect(part).to_contain_text("greedy agreement 0.21 [0.15 .. 0.28] is below 0.6")
    expect(part.locator("tbody tr")).to_have_text(
        [
            "perplexity ratio1.001 0.999 to 1.003",
            "log-probability gap, nats0.020 0.015 to 0.025",
            "greedy agreement21.0 % 15.0 % to 28.0 %",
        ]
    )
    expect(part).to_contain_text("36 prompts of shipped (1a2b3c4d), against trial 0, in 12.0 s")
    assert axe.violations(page) == []
    page.goto(f"{service}/studies/usual")
    expect(ready(page).locator("section", has=page.locator("h2#launches")).locator("thead")).not_to_contain_text(
        "answers"
    )


def test_what_a_stopped_study_was_measuring_is_not_said_to_run(looking: Looking, service: str, own: Places) -> None:
    with Store.open(own.database) as store:
        made_studies.add_study(store, "halted")
        made_studies.add_trial(store, "halted", made_studies.measured(2000, 0.6), {})
        made_studies.add_trial(store, "halted", None, {"max-num-seqs": 64})
        store.set_study_state("halted", StudyState.STOPPED)
    page = ready(looking(f"{service}/studies/halted"))
    expect(page.locator(".head .facts", has_text="trials")).to_contain_text("1 measured, 1 interrupted")
    expect(page.locator(".head")).to_contain_text("Its own command goes on with it")
    expect(page.get_by_role("button", name="Go on")).to_have_count(0)
    expect(page.locator(".legend")).to_contain_text("interrupted: goes on with the study 1")
    launches = page.locator("section", has=page.locator("h2#launches"))
    expect(launches.locator("tbody tr").nth(1)).to_contain_text("interrupted")
    page.locator(".mark[data-number='1']").click()
    expect(page.locator("dialog[open] dl").first).to_contain_text("Outcomeinterrupted")
    assert axe.violations(page) == []


def test_a_service_that_only_shows_says_so_and_offers_nothing_else(looking: Looking, places: Places) -> None:
    with served(ServeSettings(places=places, look_only=True)) as address:
        page = ready(looking(f"{address}/studies/usual/trials/4"))
        expect(page.locator(".look-tag")).to_be_visible()
        expect(page.locator("dialog[open] button", has_text="Compare with baseline")).to_be_visible()
        for view in ("/studies/usual/trials/4", "/studies/one", "/", "/promotions", "/new"):
            page.goto(f"{address}{view}")
            ready(page)
            expect(page.locator(".look-tag")).to_be_visible()
            words = re.compile("^(Promote|New study|Begin|Ten more|Go on|Stop|Roll back|Queue$)")
            expect(page.locator("button:visible, a:visible", has_text=words)).to_have_count(0)
            assert axe.violations(page) == []


def test_a_command_line_is_broken_between_its_words(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/studies/usual", viewport=PHONE))
    line = page.locator(".copy pre").first
    assert re.fullmatch(r"vllm serve \S+( \S+)+", line.evaluate("one => one.textContent"))
    row = line.evaluate("one => Number.parseFloat(getComputedStyle(one).lineHeight)")
    heights = line.locator(".word").evaluate_all("all => all.map(one => one.offsetHeight)")
    assert len(heights) > 4
    assert heights == pytest.approx([row] * len(heights), abs=2)


def test_two_trials_are_compared(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/compare?a=usual:0&b=with-slo:4"))
    page.locator("dialog[open] table", has_text="TTFT p95").wait_for()
    expect(page.locator("dialog")).to_contain_text("B against A")


@pytest.mark.parametrize("view", ["/", "/studies/usual", "/promotions", "/queue", "/nodes", "/new"])
def test_every_view_is_accessible_and_fits_a_phone(looking: Looking, service: str, view: str) -> None:
    for scheme in ("light", "dark"):
        page = ready(looking(f"{service}{view}", viewport=PHONE, scheme=scheme))
        page.wait_for_timeout(50)
        assert axe.violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_an_address_of_nothing_says_so(looking: Looking, service: str) -> None:
    page = looking(f"{service}/studies/nobody", expected=(REFUSED,))
    page.locator("[role=alert]", has_text="nobody").wait_for()


def test_a_token_is_asked_for_taken_and_given_back(looking: Looking, places: Places) -> None:
    with served(ServeSettings(places=places, token_hashes=(hashed("a-token-of-some-length"),))) as address:
        page = looking(f"{address}/studies/usual", expected=(REFUSED,))
        page.wait_for_url(f"{address}/login?next=/studies/usual")
        assert axe.violations(page) == []
        page.locator("#token").fill("wrong")
        page.locator("button", has_text="Log in").click()
        page.locator("#wrong", has_text="This is not the token.").wait_for()
        page.locator("#token").fill("a-token-of-some-length")
        page.keyboard.press("Enter")
        page.locator("h1", has_text="usual").wait_for()
        assert page.evaluate("document.cookie") == ""  # scripts cannot read it
        page.locator("button", has_text="Log out").click()
        page.locator("#token").wait_for()
        page.goto(f"{address}/")
        page.wait_for_url(f"{address}/login**")


def test_login_leads_nowhere_else(looking: Looking, service: str) -> None:
    page = looking(f"{service}/login")
    lead = """async (next) => {
        const { nextPlace } = await import('/static/js/login.js');
        return nextPlace('?next=' + encodeURIComponent(next), location.origin);
    }"""
    for wanted in ("https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example", "javascript:alert(1)"):
        assert page.evaluate(lead, wanted) == "/"
    assert page.evaluate(lead, "/studies/a?ttft_p95=5ms") == "/studies/a?ttft_p95=5ms"


def test_the_service_sends_every_file_that_the_page_names() -> None:
    static = Path(__file__).parents[2] / "autotune" / "web" / "static"
    for page in ("index.html", "login.html"):
        for name in re.findall(r'(?:src|href)="/static/([^"]+)"', (static / page).read_text(encoding="utf-8")):
            assert name in static_files()
    for module in (static / "js").glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', module.read_text(encoding="utf-8")):
            assert (module.parent / name).is_file()


OUTSIDE = """dialog => [...dialog.querySelectorAll("input, button, select, h2, h3, p")]
    .filter(one => !one.closest(".scroll, pre") && one.getBoundingClientRect().right > innerWidth)
    .map(one => one.outerHTML.slice(0, 120))"""
"""What a dialog cuts off at the right, but for what scrolls by itself."""


@pytest.mark.parametrize("view", ["/studies/usual/trials/4", "/compare?a=usual:0&b=usual:4", "promote"])
def test_no_dialog_cuts_anything_off_on_a_phone(looking: Looking, service: str, view: str) -> None:
    page = ready(looking(f"{service}{view if view != 'promote' else '/studies/usual/trials/4'}", viewport=PHONE))
    if view == "promote":
        page.locator("dialog[open] button", has_text="Promote …").click()
        page.locator("dialog pre", has_text="max-num-seqs").first.wait_for()
    page.locator("dialog[open] h3").first.wait_for()
    assert page.locator("dialog[open]").evaluate(OUTSIDE) == []
    assert axe.violations(page) == []


def test_growth_is_held_against_random_search_of_the_same_question(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/studies/usual"))
    expect(page.locator("figure .line-own")).to_have_count(2)
    expect(page.locator("figure .line-control")).to_have_count(2)  # over launches and over minutes
    part = page.locator("section", has=page.locator("h2#growth"))
    expect(part.locator(".legend")).to_contain_text("random search (by-chance)")
    part.locator("summary").click()
    expect(part.locator("thead")).to_contain_text("random: hypervolume")
    page.goto(f"{service}/studies/simulated")
    ready(page)
    expect(page.locator("figure .line-own")).to_have_count(2)
    expect(page.locator("figure .line-control")).to_have_count(0)  # measured, which is no control for a model


def test_a_goodput_is_called_one_everywhere(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/studies/goodput"))
    front = page.locator("section.hero figure")
    expect(front.locator("text=goodput: requests/s per GPU that meet the SLO")).to_have_count(1)
    expect(page.locator(".verdict .big").first).to_contain_text("≥ 14.0")  # every rate that was tried met the SLO
    expect(page.locator(".verdict .big").first).to_contain_text("1,792 output tokens/s per GPU at that rate")
    page.locator(".mark[data-number='0']").focus()
    expect(front.locator(".tip")).to_contain_text("goodput, requests/s per GPU10.0 9.60 to 10.4")
    page.locator("summary", has_text="configs with figures").click()
    expect(page.locator("section.hero thead")).to_contain_text("goodput, requests/s per GPU")
    launches = page.locator("section", has=page.locator("h2#launches"))
    expect(launches.locator("tbody tr").first).to_contain_text("10.0")
    curves = page.locator("section", has=page.locator("h2#curves"))
    expect(curves.locator("path.goodput")).to_have_count(3)
    expect(curves.locator("[aria-label^='pick · 1, poisson 11.2/s']")).to_have_count(1)  # a rate that was probed
    curves.locator("summary", has_text="latency against load").click()
    expect(curves.locator("tr", has_text="probe for the goodput")).to_have_count(9)


def test_curves_of_any_trial_are_fetched_when_it_is_chosen(looking: Looking, service: str, report: Any) -> None:
    page = ready(looking(f"{service}/studies/wide"))
    picture = page.locator("figure[aria-label='Latency against load']")
    evidence = page.evaluate("fetch('/api/v1/studies/wide/page/evidence').then(answer => answer.json())")
    here = {one["number"] for one in evidence["curves"]}
    other = next(number for number in range(1, 50) if number % 9 and number not in here)
    chooser = page.locator("select[aria-label='Add a trial']")
    chooser.select_option(str(other))
    expect(picture.locator(f"[aria-label^='trial {other}, ']")).to_have_count(2)
    page = ready(looking(report("wide")))
    expect(page.locator(f"select[aria-label='Add a trial'] option[value='{other}']")).to_have_count(0)
    expect(page.locator("text=The curves of 5 more trials with figures are not in this file")).to_be_visible()


def test_a_part_with_nothing_to_show_is_one_line_with_its_reason(looking: Looking, service: str) -> None:
    page = ready(looking(f"{service}/studies/infeasible"))
    gone = page.locator("section", has=page.locator("h2#absent"))
    expect(gone).to_contain_text("Without a measured baseline there is nothing to grow from.")
    expect(page.locator("h2#growth")).to_be_hidden()
    expect(page.locator("h2#failed")).to_be_visible()
