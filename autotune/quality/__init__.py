"""The quality guard: whether a config still answers as a reference config does."""
