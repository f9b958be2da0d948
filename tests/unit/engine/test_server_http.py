from autotune.engine.server_http import _settings_text


def test_a_configuration_as_json_becomes_names_and_values() -> None:
    config = {
        "model_config": {"model": "m", "max_model_len": 8192, "dtype": "torch.bfloat16", "hf_config": {"a": 1}},
        "scheduler_config": {"max_num_seqs": 128, "max_model_len": 1, "policy": None},
        "speculative_config": {"tensor_parallel_size": 4},
        "cache_config": "not an object",
    }
    assert _settings_text(config) == (
        "model='m', max_model_len=8192, dtype='torch.bfloat16', max_num_seqs=128, policy=None"
    )
