"""A driver of GPUs that are files."""
