"""What a study runs on: GPUs, model shape, memory arithmetic, vLLM's defaults."""
