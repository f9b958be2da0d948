"""The search benchmark: samplers replayed on surfaces whose truth is known. See docs/search-benchmark.md."""
