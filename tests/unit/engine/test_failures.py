import gzip
from collections import Counter
from pathlib import Path

import pytest
import yaml

from autotune.engine.diagnosis import diagnose
from autotune.engine.failures import classify
from autotune.engine.logs import LogReader
from autotune.records import FailureClass

DATA = Path(__file__).parents[2] / "data" / "logs"
WRITTEN = yaml.safe_load((DATA / "failures.yaml").read_text(encoding="utf-8"))
GIB = 1024**3


def log_of(case):
    return case["text"].replace("\\e", "\x1b").encode()


def verdict(log: bytes, **how):
    reader = LogReader()
    return classify([*reader.feed(log), *reader.close()], **how)


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case["name"])
def test_written_log(case):
    found = verdict(log_of(case), exit_status=case.get("exit_status"), hung=case.get("hung", False))
    assert found.kind == case["class"]
    if case["line"] is None:
        assert found.line is None
    else:
        assert found.line is not None
        assert case["line"] in found.line
    if found.kind is not FailureClass.HEALTHY:
        assert found.remedies
        wanted = case.get("facts", {})
        assert {name: value for name, value in found.facts if name in wanted} == wanted
    if "remedy" in case:
        assert found.remedies[0] == case["remedy"]


def test_every_class_has_two_texts_of_different_kind():
    counted = Counter(case["class"] for case in WRITTEN)
    of_logs = set(FailureClass) - {FailureClass.SLO_MISSED, FailureClass.NODE_LOST}  # measured; told by Ray
    assert {kind: counted[kind] for kind in of_logs if counted[kind] < 2} == {}


# (folder/file, exit status, class, root line, facts): numbers as the line or the server's own flags have them.
RECORDED = [
    (
        "h200-0.25/H-kvdtype-bad",
        2,
        "invalid_flag",
        "argument --kv-cache-dtype: invalid choice: 'fp9'",
        {"value": "fp9"},
    ),
    (
        "h200-0.25/H-len131072-util0.15",
        1,
        "kv_cache_too_small",
        "ValueError: To serve at least one request with the model's max seq len (131072)",
        {"required_tokens": 131072, "needed_kv_bytes": 16 * GIB, "estimated_max_model_len": 37984},
    ),
    (
        "h200-0.25/H-mnbt-lt-len",
        1,
        "invalid_combination",
        "max_num_batched_tokens (4096) is smaller than max_model_len (8192)",
        {"max_num_batched_tokens": 4096, "max_model_len": 8192},
    ),
    (
        "h200-0.25/H-tp2",
        1,
        "gpu_count",
        "World size (2) is larger than the number of available GPUs (1)",
        {"gpus_needed": 2, "gpus_visible": 1},
    ),
    (
        "h200-0.25/H-util0.05",
        1,
        "kv_cache_none",
        "ValueError: No available memory for the cache blocks.",
        {"available_kv_bytes": round(-9.11 * GIB)},
    ),
    (
        "h200-0.25/nvfp4-kv",
        1,
        "kv_dtype_unsupported",
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128",
        {"kv_dtype": "nvfp4"},
    ),
    ("h200-0.25/A-default", 0, "healthy", None, {}),
    ("h200-0.25/E-util0.18", 0, "healthy", None, {}),
    ("h200-0.25/G-eager", 0, "healthy", None, {}),
    ("cpu-0.32/healthy", 0, "healthy", None, {}),
    ("cpu-0.32/json", 0, "healthy", None, {}),
    ("cpu-0.32/crash", 0, "crash", "RuntimeError: Unsupported CPU attention configuration: head_dim=16", {}),
    (
        "cpu-0.32/flag",
        2,
        "invalid_flag",
        "error: unrecognized arguments: --no-such-flag",
        {"argument": "--no-such-flag"},
    ),
    ("cpu-0.32/dtype", 2, "invalid_flag", "argument --kv-cache-dtype: invalid choice: 'fp9'", {"value": "fp9"}),
    (
        "cpu-0.32/kvsmall",
        1,
        "kv_cache_too_small",
        "max seq len (4194304)",
        {"needed_kv_bytes": 2 * GIB, "available_kv_bytes": GIB, "estimated_max_model_len": 2097024},
    ),
    ("cpu-0.32/nomodel", 1, "model_unknown", "HFValidationError: Repo id must be in the form", {}),
    (
        "cpu-0.32/kvhuge",
        1,
        "oom_at_warmup",
        "is less than requested memory for kv (500.0 GiB)",
        {"wanted_bytes": 500 * GIB},
    ),
    (
        "cpu-0.32/tp3",
        1,
        "indivisible",
        "attention heads (2) must be divisible by",
        {"heads": 2, "tensor_parallel_size": 3},
    ),
    ("cpu-0.32/port", 1, "port_in_use", "OSError: [Errno 98] Address already in use", {}),
    ("cpu-0.32/mnbt", 1, "invalid_combination", "max_num_batched_tokens (256)", {"max_model_len": 512}),
    (
        "cpu-0.32/seqs",
        1,
        "invalid_combination",
        "must be greater than or equal to max_num_seqs (512)",
        {"max_num_seqs": 512},
    ),
    (
        "cpu-0.32/toolong",
        1,
        "invalid_combination",
        "User-specified max_model_len (1000000)",
        {"derived_max_model_len": 131072},
    ),
    (
        "cpu-0.32/badval",
        1,
        "invalid_flag",
        "Input should be greater than or equal to 1",
        {"argument": "max_num_batched_tokens"},
    ),
]


@pytest.mark.parametrize(("name", "status", "kind", "line", "facts"), RECORDED, ids=[case[0] for case in RECORDED])
@pytest.mark.parametrize("known", [True, False], ids=["with its exit status", "from the log alone"])
def test_recorded_log(name, status, kind, line, facts, known):
    log = gzip.decompress((DATA / f"{name}.log.gz").read_bytes())
    found = verdict(log, exit_status=status if known else None)
    assert found.kind == kind
    assert (found.line is None) if line is None else (line in (found.line or ""))
    assert dict(found.facts).items() >= facts.items()


@pytest.mark.parametrize(
    ("status", "ready", "kind"),
    [
        (0, True, "healthy"),
        (None, True, "healthy"),
        (-15, True, "healthy"),
        (143, True, "healthy"),
        (-9, True, "crash"),
        (1, True, "crash"),
        (0, False, "crash"),
        (-9, False, "crash"),
        (135, False, "shared_memory"),
        (-7, True, "shared_memory"),
        (2, False, "invalid_flag"),
        (2, True, "crash"),
    ],
)
def test_exit_status_alone(status, ready, kind):
    log = b"INFO:     Application startup complete.\n" if ready else b"loading\n"
    assert verdict(log, exit_status=status).kind == kind


def test_a_cause_in_the_log_beats_the_watchdog():
    log = b"(Worker_TP0 pid=1) ERROR 01-01 00:00:00 [x.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"
    assert verdict(log, hung=True).kind == "oom_at_load"
    assert verdict(b"Starting to load model a/b\n", hung=True).kind == "hang"


def test_under_load_a_request_error_counts_only_when_the_server_dies():
    trouble = (
        b"INFO:     Application startup complete.\n"
        b"ERROR 01-01 00:00:00 [serving.py:1] Traceback (most recent call last):\n"
        b'ERROR 01-01 00:00:00 [serving.py:1]   File "x.py", line 1, in render\n'
        b"ERROR 01-01 00:00:00 [serving.py:1] KeyError: 'content'\n"
    )
    assert verdict(trouble).kind == "healthy"
    died = verdict(trouble, exit_status=1)
    assert (died.kind, died.line) == ("crash", "KeyError: 'content'")


def test_memory_runs_out_in_the_phase_the_milestones_say():
    oom = b"ERROR 01-01 00:00:00 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB\n"
    loaded = b"INFO 01-01 00:00:00 [x.py:1] Model loading took 15.0 GiB and 1.5 seconds\n"
    ready = b"INFO:     Application startup complete.\n"
    assert verdict(oom).kind == "oom_at_load"
    assert verdict(loaded + oom).kind == "oom_at_warmup"
    assert verdict(loaded + ready + oom).kind == "oom_under_load"


def test_secrets_of_the_root_line_are_taken_out():
    secret = "hf_" + "A1b2" * 6
    found = verdict(f"OSError: gated repo, token {secret}\n".encode())
    assert found.kind == "model_access"
    assert secret not in repr(found)


def test_memory_stays_bounded_by_the_number_of_causes_kept():
    log = b"".join(b"(P%d pid=%d) ValueError: trouble %d\n" % (i, i, i) for i in range(2000))
    found = verdict(log)
    assert (found.kind, found.line) == ("crash", "ValueError: trouble 0")


def test_diagnosis_and_classification_agree():
    for case in WRITTEN:
        if not case.get("hung"):
            status = case.get("exit_status")
            assert diagnose(log_of(case), status).kind == verdict(log_of(case), exit_status=status).kind
