"""Programs that measure this project: run from its root, not installed."""
