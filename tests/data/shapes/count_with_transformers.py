"""Counts the parameters of the catalogue's text models by building them with transformers on the meta device.

    python count_with_transformers.py configs.json > transformers-counts.json

`configs.json` holds {hub id: config}, as `autotune.node.catalogue.find` gives them. Needs torch and transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

counts = {}
for name, config in json.loads(Path(sys.argv[1]).read_text()).items():
    keys = {k: v for k, v in config.items() if k not in ("model_type", "architectures", "quantization_config")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](**keys))
    corrections = sum(b.numel() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias"))
    counts[name] = sum(p.numel() for p in model.parameters()) + corrections
sys.stdout.write(json.dumps(counts, indent=1) + "\n")
