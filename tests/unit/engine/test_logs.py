# ruff: noqa: E501  # lines of logs and metrics stand as servers print them
import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.log_lines import HEAD_BYTES, TAIL_BYTES, LineSplitter, LogLine, records_of
from autotune.engine.logs import LogReader, MilestoneName, Throughput, parse_throughput
from autotune.records import CompileStart, ServerFacts

DATA = Path(__file__).parents[2] / "data" / "logs"
GIB = 1024**3
M = MilestoneName


def read(text: str | bytes) -> tuple[LogReader, list]:
    reader = LogReader()
    log = text.encode() if isinstance(text, str) else text
    return reader, [*reader.feed(log), *reader.close()]


def recorded(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.log.gz").read_bytes())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("INFO 03-29 15:53:07 loader.py:267] msg a", LogLine(text="msg a", level="INFO", source="loader.py:267")),
        ("INFO 04-30 10:20:35 [monitor.py:33] msg", LogLine(text="msg", level="INFO", source="monitor.py:33")),
        (
            "(VllmWorkerProcess pid=1) INFO 04-30 10:20:35 pynccl.py:63] msg",
            LogLine(text="msg", level="INFO", process="VllmWorkerProcess pid=1", source="pynccl.py:63"),
        ),
        (
            "(VllmWorker rank=1 pid=2978) ERROR 04-30 10:20:35 [core.py:3]     indented",
            LogLine(text="    indented", level="ERROR", process="VllmWorker rank=1 pid=2978", source="core.py:3"),
        ),
        (
            "(Worker_TP1_EP1 pid=7) WARNING 04-30 10:20:35 [distributed/parallel_state.py:33] msg",
            LogLine(
                text="msg", level="WARNING", process="Worker_TP1_EP1 pid=7", source="distributed/parallel_state.py:33"
            ),
        ),
        (
            "(RayWorkerWrapper pid=1, ip=10.0.0.2) INFO 04-30 10:20:35 [w.py:3] msg [repeated 30x across cluster]",
            LogLine(text="msg", level="INFO", process="RayWorkerWrapper pid=1, ip=10.0.0.2", source="w.py:3"),
        ),
        (
            "(EngineCore) INFO 04-30 10:20:35 [c.py:3] m",
            LogLine(text="m", level="INFO", process="EngineCore", source="c.py:3"),
        ),
        ("(EngineCore pid=3) ValueError: x", LogLine(text="ValueError: x", process="EngineCore pid=3")),
        (
            "(APIServer pid=3) INFO:     Application startup complete.",
            LogLine(text="Application startup complete.", level="INFO", process="APIServer pid=3"),
        ),
        (
            '2026-01-01T00:00:00.000000001Z stderr F   File "a.py", line 1, in f',
            LogLine(text='  File "a.py", line 1, in f'),
        ),
        ("vllm-1  | (EngineCore pid=3)     self.run()", LogLine(text="    self.run()", process="EngineCore pid=3")),
        ("[pod/vllm-0/server] ValueError: x", LogLine(text="ValueError: x")),
        ('[rank0]:   File "a.py", line 1, in f', LogLine(text='  File "a.py", line 1, in f', process="rank0")),
        ("    raise ValueError(", LogLine(text="    raise ValueError(")),
        (
            'prefix {"asctime": "t", "levelname": "ERROR", "processName": "EngineCore", "process": 9, "message": "boom"}',
            LogLine(text="boom", level="ERROR", process="EngineCore pid=9"),
        ),
        (
            '{"log":"{\\"levelname\\": \\"INFO\\", \\"message\\": \\"inner\\"}\\n","stream":"stderr"}',
            LogLine(text="inner", level="INFO"),
        ),
        (
            '{"severity":"ERROR","textPayload":"(EngineCore pid=3) ValueError: x"}',
            LogLine(text="ValueError: x", level="ERROR", process="EngineCore pid=3"),
        ),
    ],
)
def test_every_known_prefix_is_taken_off(line, expected):
    assert records_of(line) == [expected]


def test_two_records_on_one_line_after_a_progress_bar():
    bar = "Capturing CUDA graphs (FULL):  96%|###| 49/51 [00:01<00:00, 31.2it/s]"
    found = records_of(
        f"{bar}(Worker_TP1 pid=7) INFO 01-01 00:00:00 [a.py:1] first(Worker_TP0 pid=6) ERROR 01-01 00:00:00 [b.py:2] second"
    )
    assert [(r.text, r.process, r.level) for r in found] == [
        (bar, None, None),
        ("first", "Worker_TP1 pid=7", "INFO"),
        ("second", "Worker_TP0 pid=6", "ERROR"),
    ]


def test_lines_end_at_newlines_and_carriage_returns_and_lose_their_colours():
    splitter = LineSplitter()
    assert splitter.feed(b"a\rb\r\nc\n\n\x1b[36m(X pid=1)\x1b[0m d\n\xffe") == ["a", "b", "c", "(X pid=1) d"]
    assert splitter.close() == ["�e"]
    assert splitter.close() == []


def test_of_a_bar_that_is_drawn_again_and_again_the_last_state_is_a_line() -> None:
    bars = "".join(
        f"Loading shards: {n:3}%|{'█' * (n // 10):10}| {n}/100 [00:01<00:05, {n}.5it/s]\r" for n in range(101)
    )
    splitter = LineSplitter()
    drawn = splitter.feed((bars + bars.replace("Loading", "Capturing") + "ERROR: no memory\r\n").encode())
    assert [line.partition("|")[0] for line in drawn] == [
        "Loading shards: 100%", "Capturing shards: 100%", "ERROR: no memory"
    ]  # fmt: skip
    assert splitter.feed(b"10%\r20%\r") == []
    assert splitter.feed(b"30%\rnow serving\n") == ["30%", "now serving"]
    assert splitter.feed(b"40%\r50%\r") == []
    assert splitter.close() == ["50%"]


def test_an_endless_line_does_not_stay_in_memory():
    splitter = LineSplitter()
    for _ in range(100):
        assert splitter.feed(b"x" * 1_000_000) == []
        assert len(splitter._head) + len(splitter._tail) <= HEAD_BYTES + TAIL_BYTES
    (line,) = splitter.feed(b"the end\n")
    assert line.startswith("x" * 1000)
    assert line.endswith("the end")
    assert len(line) == HEAD_BYTES + TAIL_BYTES + len(" [...] ")


PIECES = [
    b"\n", b"\r", b"\r\n", b"(EngineCore_DP1 pid=3) ", b"INFO 01-01 00:00:00 [a.py:1] ", b"ERROR 01-01 00:00:00 a.py:1] ",
    b"GPU KV cache size: 1,000 tokens", b"Application startup complete.", b"\x1b[0;36m", b"\xff\xfe", "é█".encode(),
    b"non-default args: {'max_num_seqs': 8, 'x': {'max_model_len': 1}}", b"version 0.9.1", b'{"message": "x"}', b"49/51 [",
    b"Avg generation throughput: 1.5 tokens/s, Running: 2 reqs", b"Traceback (most recent call last):", b"Capturing CUDA graphs: ",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=30).map(b"".join),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_chunking_never_matters_and_nothing_raises(log, cuts):
    whole_reader, whole = read(log)
    reader, events, start = LogReader(), [], 0
    for cut in sorted(cuts):
        events += reader.feed(log[start:cut])
        start = max(start, cut)
    events += reader.feed(log[start:])
    events += reader.close()
    assert events == whole
    assert reader.facts() == whole_reader.facts()


# What vLLM's own log says, read by eye; durations and tokens as printed, GiB x 1024^3.
RECORDED = {
    "h200-0.25/A-default": ServerFacts(
        vllm_version="0.25.1", kv_cache_tokens=919824, max_concurrency=112.28, available_kv_bytes=round(112.28 * GIB),
        weights_bytes=15 * GIB, max_model_len=8192, max_num_batched_tokens=8192, gpu_memory_utilization=0.92,
        kv_cache_dtype="auto", dtype="bfloat16", attention_backend="FLASH_ATTN", prefix_caching=True,
        chunked_prefill=True, load_s=1.52649, compile_s=18.13, graph_capture_s=5.0, compile_start=CompileStart.COLD,
        non_default_args="{'model_tag': '/tmp/models/llama8b', 'host': '127.0.0.1', 'port': 8123, "
        "'model': '/tmp/models/llama8b', 'max_model_len': 8192, 'load_format': 'dummy'}",
    ),
    "cpu-0.32/healthy": ServerFacts(
        vllm_version="0.32.0", kv_cache_tokens=2097152, max_concurrency=4096.0, available_kv_bytes=GIB,
        max_model_len=512, kv_cache_dtype="auto", dtype="bfloat16", prefix_caching=True, chunked_prefill=True,
        non_default_args="{'host': '127.0.0.1', 'port': 18421, 'model': '/models/tiny-llama', 'dtype': 'bfloat16', "
        "'max_model_len': 512, 'enforce_eager': True, 'load_format': 'dummy'}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_facts_of_a_recorded_log(name):
    assert read(recorded(name))[0].facts() == RECORDED[name]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("h200-0.25/B-seqs32", "max_num_seqs", 32),
        ("h200-0.25/B-seqs32", "compile_start", CompileStart.COLD),
        ("h200-0.25/F-noprefix", "compile_start", CompileStart.WARM),
        ("h200-0.25/G-eager", "compile_start", None),
        ("h200-0.25/D-fp8kv", "kv_cache_dtype", "fp8"),
        ("h200-0.25/D-fp8kv", "kv_cache_tokens", 1839648),
        ("h200-0.25/E-util0.18", "gpu_memory_utilization", 0.18),
        ("h200-0.25/F-noprefix", "prefix_caching", False),
        ("h200-0.25/H-util0.05", "available_kv_bytes", round(-9.11 * GIB)),
        ("h200-0.25/H-util0.05", "kv_cache_tokens", None),
    ],
)
def test_what_a_flag_changes_is_read_back(name, field, value):
    assert getattr(read(recorded(name))[0].facts(), field) == value


def test_milestones_of_a_whole_start():
    reader, events = read(recorded("h200-0.25/A-default"))
    assert reader.milestones == tuple(M)
    assert [e.milestone for e in events if e.milestone] == list(M)


def test_the_cpu_build_reaches_its_milestones_too():
    reader, _ = read(recorded("cpu-0.32/healthy"))
    assert set(M) - set(reader.milestones) == {M.COMPILING, M.GRAPHS_CAPTURED}
    assert read(recorded("cpu-0.32/json"))[0].milestones == reader.milestones


@pytest.mark.parametrize(
    ("text", "tokens", "concurrency", "model_len"),
    [
        ("INFO 1 # GPU blocks: 1952, # CPU blocks: 2048\nMaximum concurrency for 20000 tokens per request: 1.56x", 31232, 1.56, 20000),
        ("# cuda blocks: 1395, # CPU blocks: 2340", 22320, None, None),
        ("# CUDA blocks: 5519, # CPU blocks: 0", 88304, None, None),
        ("args: Namespace(block_size=32, max_num_seqs=256)\n# GPU blocks: 10, # CPU blocks: 0", 320, None, None),
        ("GPU KV cache size: 2,042,016 tokens\nMaximum concurrency for 2,048 tokens per request: 997.08x", 2042016, 997.08, 2048),
        ("GPU KV cache size: 314,187 tokens, Maximum concurrency for 8,192 tokens per request: 38.35x", 314187, 38.35, 8192),
        ("GPU + host KV cache size: 1,000 tokens", 1000, None, None),
        # eight ranks of one engine, slightly different: the smallest bounds it
        ("GPU KV cache size: 107,824 tokens\nGPU KV cache size: 107,312 tokens\nGPU KV cache size: 107,456 tokens", 107312, None, None),
        # two data-parallel engines add up, two ranks inside one do not
        (
            "(EngineCore_DP0 pid=1) GPU KV cache size: 1,000 tokens\n(EngineCore_DP1 pid=2) GPU KV cache size: 3,000 tokens\n"
            "(EngineCore_DP1 pid=2) GPU KV cache size: 2,000 tokens\n"
            "(EngineCore_DP0 pid=1) Maximum concurrency for 100 tokens per request: 10.00x\n"
            "(EngineCore_DP1 pid=2) Maximum concurrency for 100 tokens per request: 20.00x",
            3000, 30.0, 100,
        ),
    ],
)  # fmt: skip
def test_kv_capacity_across_versions(text, tokens, concurrency, model_len):
    facts = read(text)[0].facts()
    assert (facts.kv_cache_tokens, facts.max_concurrency, facts.max_model_len) == (tokens, concurrency, model_len)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("Loading model weights took 14.9888 GB", "weights_bytes", round(14.9888 * GIB)),
        ("Model loading took 3.2637 GB and 18.05 seconds", "load_s", 18.05),
        ("Model loading took 13.72 GiB memory and 62.336108 seconds", "load_s", 62.336108),
        ("model weights take 0.52GiB; non_torch_memory takes 0.06GiB", "weights_bytes", round(0.52 * GIB)),
        ("the rest of the memory reserved for KV Cache is -1.05GiB.", "available_kv_bytes", round(-1.05 * GIB)),
        ("Memory profiling results: total_gpu_memory=23.58GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90", "available_kv_bytes", round(3.81 * GIB)),
        ("total_gpu_memory (23.68GiB) x gpu_memory_utilization (0.78) = 18.47GiB", "gpu_memory_utilization", 0.78),
        ("Available KV cache memory: 35.34 GiB\nAvailable KV cache memory: 35.3 GiB", "available_kv_bytes", round(35.3 * GIB)),
        ("torch.compile takes 18.05 s in total", "compile_s", 18.05),
        ("init engine (profile, create kv cache, warmup model) took 13.70 s (compilation: 7.28 s)", "compile_s", 7.28),
        ("Graph capturing finished in 22 secs, took 0.64 GiB", "graph_capture_s", 22.0),
        ("Using Flash Attention backend on V1 engine.", "attention_backend", "Flash Attention"),
        ("vLLM API server version 0.9.2rc2.dev22+g1a2b3c", "vllm_version", "0.9.2rc2.dev22+g1a2b3c"),
        ("vLLM API server version 0.8.5", "startup_s", None),
        ("non-default args: {'max_num_seqs': 64, 'speculative_config': {'max_num_seqs': 1}}", "max_num_seqs", 64),
        ("non-default args: {'speculative_config': {'max_model_len': 1}, 'x': <A.B: (1, 2)>, 'max_model_len': 9}", "max_model_len", 9),
        ("args: Namespace(api_key='supersecretvalue', max_num_seqs=7)", "max_num_seqs", 7),
        ("args: Namespace(api_key='supersecretvalue')", "non_default_args", "Namespace(api_key='<redacted>')"),
        ("Initializing an LLM engine (v0.6.4) with config: model='a', dtype=torch.float16, max_seq_len=32768, chunked_prefill_enabled=True", "chunked_prefill", True),
        ("Initializing an LLM engine (v0.6.4) with config: model='a', dtype=torch.float16, max_seq_len=32768", "dtype", "float16"),
    ],
)  # fmt: skip
def test_settings_across_versions(text, field, value):
    assert getattr(read(text)[0].facts(), field) == value


def test_waiting_for_ever_is_no_progress():
    line = "(APIServer pid=1) DEBUG 01-01 00:00:00 [utils.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.\n"
    assert not any(event.advances for event in read(line * 50)[1])


def test_progress_bars_advance_only_when_their_count_goes_up():
    bars = (
        "\rLoading safetensors checkpoint shards:   0% Completed | 0/30 [00:00<?, ?it/s]"
        "\rLoading safetensors checkpoint shards:   3% Completed | 1/30 [00:01<00:29, 1.0it/s]"
        "\rLoading safetensors checkpoint shards:   3% Completed | 1/30 [00:02<00:29, 1.0it/s]"
        "\rLoading safetensors checkpoint shards:  10% Completed | 3/30 [00:03<00:27, 1.0it/s]\n"
    )
    _, events = read(bars)
    assert [e.progress for e in events if e.progress] == [
        "Loading safetensors checkpoint shards 1/30",
        "Loading safetensors checkpoint shards 3/30",
    ]
    assert [e.milestone for e in events if e.milestone] == [M.LOADING_WEIGHTS]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "INFO 1 metrics.py:453] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 32.5 tokens/s, Running: 1 reqs, "
            "Swapped: 0 reqs, Pending: 3 reqs, GPU KV cache usage: 1.4%, CPU KV cache usage: 0.0%.",
            Throughput(prompt_tok_s=0.0, generation_tok_s=32.5, running=1, waiting=3, kv_usage=0.014),
        ),
        (
            "Engine 002: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 6.5 tokens/s, Running: 259 reqs, "
            "Waiting: 535 reqs, Deferred: 2 reqs, Preemptions: 7, GPU KV cache usage: 82.3%, Prefix cache hit rate: 32.2%, MM cache hit rate: 1.0%",
            Throughput(engine=2, prompt_tok_s=5.0, generation_tok_s=6.5, running=259, waiting=535, kv_usage=0.823, prefix_hit_share=0.322, preemptions=7),
        ),
        (
            "4 Engines Aggregated: Avg generation throughput: 6.5 tokens/s, GPU KV cache usage: 0.5%",
            Throughput(generation_tok_s=6.5, kv_usage=0.005),
        ),
        ("Engine 000: Avg generation throughput: 1.0 tokens/s, CPU KV cache usage: 12.5%", Throughput(engine=0, generation_tok_s=1.0, kv_usage=0.125)),
        ("Waiting: 3 reqs", None),
    ],
)  # fmt: skip
def test_throughput_lines(text, expected):
    assert parse_throughput(text) == expected


def test_preemptions_are_counted_as_each_version_tells_them():
    v0 = "WARNING Sequence group {} is preempted by PreemptionMode.RECOMPUTE mode. total_num_cumulative_preemption={}\n"
    assert read(v0.format(0, 1) + v0.format(9, 51))[0].preemptions == 51
    v1 = "Engine 000: Avg generation throughput: 1.0 tokens/s, Preemptions: {}, Running: 1 reqs\n"
    assert read(v1.format(3) + v1.format(4))[0].preemptions == 7
    assert read("Engine 000: Avg generation throughput: 1.0 tokens/s")[0].preemptions is None


def test_a_kernel_compiled_while_serving_is_reported():
    _, (event,) = read(
        "WARNING 01-01 00:00:00 [jit_monitor.py:9] Triton kernel JIT compilation during inference: _fwd_kernel. This causes a latency spike"
    )
    assert event.jit_kernel == "_fwd_kernel"


def test_what_users_send_is_never_the_servers_word():
    reader, _ = read(
        "INFO 01-01 00:00:00 [logger.py:4] Received request 1: prompt: 'Application startup complete. GPU KV cache size: 9 tokens'"
    )
    assert reader.milestones == ()
    assert reader.facts().kv_cache_tokens is None


def test_a_restarted_container_begins_anew():
    start = "vLLM API server version 0.9.0\nnon-default args: {'max_num_seqs': 3}\nGPU KV cache size: 10 tokens\n"
    reader, events = read(start + "Application startup complete.\n" + start.replace("10", "20"))
    assert [i for i, event in enumerate(events) if event.new_run] == [4]
    assert reader.facts().kv_cache_tokens == 20
    assert M.SERVER_READY not in reader.milestones
