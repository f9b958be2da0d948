from html.parser import HTMLParser

import pytest
from report_cases import measured, study

from autotune.records import Caveat
from autotune.report.html import front_page

HOSTILE = "<script>alert(1)</script>\" onload='x' {{ 7 * 7 }} &amp;"
POINTERS = {"aria-labelledby", "xlink:href"}
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Strict(HTMLParser):
    """Collects elements and text; every element must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Strict:
    parser = Strict()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


@pytest.mark.parametrize(
    "view", [study(), study(simulated=True), study(trials=(), front=(), pick=None), study(slo=None)]
)
def test_the_page_is_whole_and_loads_nothing(view: object) -> None:
    page = read(front_page(view))
    names = {name for name, _ in page.elements}
    assert not names & {"script", "link", "img", "iframe", "object"}
    for _, attributes in page.elements:
        for key in ("src", "href", "xlink:href"):
            assert (attributes.get(key) or "#").startswith("#")
        assert not [key for key in attributes if key.startswith("on")]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(value) for _, attributes in page.elements for key, value in attributes.items() if key in POINTERS]
    assert {link.lstrip("#") for link in links} <= set(ids)


def test_it_shows_front_pick_and_baseline() -> None:
    text = " ".join(" ".join(read(front_page(study(), serve_line="vllm serve m --x 'a b'")).text).split())
    for fact in (
        *("Pick: trial 1", "most throughput within ttft_p95<=500ms", "+40 % against the baseline", "-54 %"),
        *("2,100 ±5 %", "410 ms ±15 %", "--max-num-seqs 128", "vLLM's defaults", "vllm serve m --x 'a b'"),
        *("infeasible: kv_cache_too_small", "sent 12 ms late at p99", "4 measured, 1 infeasible, 1 faulted"),
    ):
        assert fact in text, fact
    assert "simulated" not in text.lower()


def test_a_simulated_page_says_so_at_every_figure() -> None:
    text = " ".join(" ".join(read(front_page(study(simulated=True))).text).split())
    assert "SIMULATED: every figure on this page" in text
    assert text.count("(simulated)") >= 8


def test_hostile_text_stays_text() -> None:
    doubt = Caveat(code="x", text=HOSTILE, remedy=HOSTILE)
    view = study(
        name=HOSTILE,
        model=HOSTILE,
        workload=HOSTILE,
        trials=(measured(0, 1.0, 1.0, {"chat-template": HOSTILE}, caveats=(doubt,)),),
        front=(0,),
        pick=None,
    )
    page = read(front_page(view, serve_line=HOSTILE))
    assert "script" not in {name for name, _ in page.elements}
    assert HOSTILE in "".join(page.text)
    assert "49" not in "".join(page.text)


def test_the_picture_has_words() -> None:
    labels = [
        attributes.get("aria-label") or ""
        for name, attributes in read(front_page(study())).elements
        if name == "figure"
    ]
    assert len(labels) == 1
    assert "2 trials on the front" in labels[0]
    hidden = [
        attributes for name, attributes in read(front_page(study())).elements if attributes.get("aria-hidden") == "true"
    ]
    assert len(hidden) == 2


def test_the_same_study_gives_the_same_page() -> None:
    assert front_page(study()) == front_page(study())
