"""Sizes of CUDA graphs, as vLLM logs them."""

from __future__ import annotations

from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, Value
from autotune.simulator.graph_sizes import captured_sizes, padding

NODE, SHAPE = parse_node_name("1xH200-141GB"), load_shape("meta-llama/Llama-3.1-8B")


def settings(**params: Value) -> ResolvedSettings:
    return resolve(Config.of({k.replace("_", "-"): v for k, v in params.items()}), NODE, SHAPE, "0.25.1")


def test_the_recorded_server_captured_51_sizes() -> None:
    sizes = captured_sizes(settings())
    assert len(sizes) == 51
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-2:] == (496, 512)


def test_sizes_end_at_the_limit_and_at_the_batch() -> None:
    assert captured_sizes(settings(max_num_seqs=8)) == (1, 2, 4, 8, 16)
    assert captured_sizes(settings(max_cudagraph_capture_size=20)) == (1, 2, 4, 8, 16)
    assert captured_sizes(settings(max_num_batched_tokens=100, max_num_seqs=100))[-2:] == (96, 100)
    assert captured_sizes(settings(enforce_eager=True)) == ()


def test_interactivity_captures_every_small_size_and_saves_the_padding() -> None:
    fine = settings(performance_mode="interactivity")
    assert captured_sizes(fine)[:33] == (*range(1, 33), 40)
    saved = padding(fine)
    # 5 would run as 8, 9 as 16; 1, 2, 4, 8, 16, 24 and 32 as they are.
    assert (saved[1], saved[3], saved[5], saved[9], saved[16], saved[25], saved[32]) == (0, 1, 3, 7, 0, 7, 0)
    assert len(saved) == 33
    assert padding(settings()) == ()
    assert padding(settings(performance_mode="interactivity", enforce_eager=True)) == ()
