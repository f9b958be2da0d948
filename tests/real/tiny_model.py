"""Makes the tiny Llama that a real vLLM serves with `--load-format dummy`: config and tokenizer, no weights.

The tokenizer is word level and knows the words that the load client writes prompts with, one token each: prompt lengths
come out exactly, and different prompts are different tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from autotune.load.words import COMMON_WORDS

VOCABULARY = 1024
MAX_POSITIONS = 2048

# head_dim 32 is the least that vLLM's CPU attention serves; with 16 the server starts and dies at its first token.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MAX_POSITIONS,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def make_tiny_model(directory: Path) -> Path:
    """Write the model's folder and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    special = {"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3}
    known = dict.fromkeys(COMMON_WORDS)
    filler = (f"w{i}" for i in range(VOCABULARY))
    words = [*known, *filler][: VOCABULARY - len(special)]
    vocabulary = special | {word: len(special) + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "model_max_length": MAX_POSITIONS,
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return directory


def add_weights(directory: Path, seed: int = 0) -> Path:
    """Random weights for the model, large enough that its next tokens are not all alike.

    The file is written by hand (https://github.com/huggingface/safetensors: the header's length, the header, the data),
    as neither torch nor safetensors is needed for anything else here.
    """
    rng = np.random.default_rng(seed)
    hidden, inner, heads = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    rows = {"q": CONFIG["num_attention_heads"] * heads, "k": CONFIG["num_key_value_heads"] * heads}
    rows["v"] = rows["k"]
    shapes = {"model.embed_tokens.weight": (VOCABULARY, hidden), "lm_head.weight": (VOCABULARY, hidden)}
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (count, hidden) for name, count in rows.items()}
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, rows["q"])
        shapes |= {f"{prefix}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, inner)
    tensors = {name: rng.normal(0.0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [f"model.layers.{i}.{name}_layernorm.weight" for i in range(2) for name in ("input", "post_attention")]
    tensors |= {name: np.ones(hidden, np.float32) for name in (*norms, "model.norm.weight")}
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    text = json.dumps(header).encode()
    body = b"".join(tensor.tobytes() for tensor in tensors.values())
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    return directory
