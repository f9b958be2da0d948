"""Writes a model folder without weights, for servers started with `--load-format dummy`.

`python -m benchmarks.dummy_model FOLDER [--shape llama-8b]`

Step times are those of real weights, because they depend on shapes alone; what such a model writes means nothing. The
tokenizer is word level and knows the words that the load client writes prompts with, one token each, so that prompt
lengths come out as asked. Only the standard library is used: a machine without network has nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from autotune.load.words import COMMON_WORDS

SHAPES: dict[str, dict[str, object]] = {
    # https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct, config.json
    "llama-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
}

SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def write_model(folder: Path, shape: dict[str, object]) -> None:
    """Config and tokenizer of `shape` into `folder`, which is made."""
    size = shape["vocab_size"]
    assert isinstance(size, int)
    known = dict.fromkeys((*SPECIAL, *COMMON_WORDS, "user:", "assistant:", "system:"))
    words = [*known, *(f"x{number}" for number in range(size))][:size]
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for number, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: n for n, word in enumerate(words)}, "unk_token": "<unk>"},
    }
    names = dict(zip(("bos_token", "eos_token", "pad_token", "unk_token"), SPECIAL, strict=True))
    files: dict[str, dict[str, object]] = {
        "config.json": shape | {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape["max_position_embeddings"],
            "chat_template": TEMPLATE,
            **names,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-8b")
    args = parser.parse_args()
    write_model(args.folder, SHAPES[args.shape])
    print(args.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
