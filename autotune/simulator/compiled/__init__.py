"""A load level on machine code; `autotune.simulator.level_run` is its plain twin and its test's oracle."""
