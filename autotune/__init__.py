"""autotune: finds the `vllm serve` flags worth running in production, and proves it."""

__version__ = "0.1.0"
