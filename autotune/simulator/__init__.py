"""A model of vLLM V1: in virtual time (`engine_model`), and behind its HTTP surface in real time (`server`)."""
