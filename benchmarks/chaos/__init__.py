"""Chaos: studies on servers that misbehave on demand, under tuners that are killed with -9, and what is left of them.

`python -m benchmarks.chaos --rounds N --seed S [--jobs J] [--json]`
"""
