"""Which files of a repository a server loads; lists as the hub has them."""

from __future__ import annotations

import pytest

from autotune.node.weights_files import HubFile, loaded_files

SMALL = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "merges.txt",
    "chat_template.jinja",
]
LLAMA = [*SMALL, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
LLAMA += ["original/consolidated.00.pth", "original/params.json", "LICENSE", "README.md", ".gitattributes"]
MISTRAL = [*SMALL, "params.json", "model-00001-of-00001.safetensors", "consolidated.safetensors"]
OLD = [*SMALL, "pytorch_model.bin", "training_args.bin", "optimizer.pt", "tf_model.h5", "flax_model.msgpack"]
CURRENT, BEFORE = (0, 32, 0), (0, 11, 0)


def weights(names: list[str], load_format: str = "auto", version: tuple[int, ...] | None = CURRENT) -> set[str]:
    files = [HubFile(name=name, size_bytes=1) for name in names]
    found = {file.name for file in loaded_files(files, load_format=load_format, version=version)}
    assert set(SMALL) <= found
    return found - set(SMALL)


@pytest.mark.parametrize(
    ("names", "load_format", "version", "found"),
    [
        (LLAMA, "auto", CURRENT, set(LLAMA[6:9])),
        (LLAMA, "safetensors", CURRENT, set(LLAMA[6:9])),
        (LLAMA, "dummy", CURRENT, {"model.safetensors.index.json"}),
        (MISTRAL, "auto", CURRENT, {"params.json", "consolidated.safetensors"}),
        (MISTRAL, "auto", BEFORE, {"params.json", "model-00001-of-00001.safetensors"}),
        (MISTRAL, "auto", None, set(MISTRAL[6:])),
        (MISTRAL, "mistral", BEFORE, {"params.json", "consolidated.safetensors"}),
        (MISTRAL, "hf", CURRENT, {"params.json", "model-00001-of-00001.safetensors"}),
        (OLD, "auto", CURRENT, {"pytorch_model.bin"}),
    ],
)
def test_one_kind_of_weights_and_nothing_twice(
    names: list[str], load_format: str, version: tuple[int, ...] | None, found: set[str]
) -> None:
    assert weights(names, load_format, version) == found
