import re
from dataclasses import replace

import pytest
from promote_cases import NODE, bash_words, deployment, measurement, trial

from autotune.errors import InvalidOption, NotPromotable
from autotune.promote import StudyFacts, Target, render, serve_argv, serve_line
from autotune.promote.from_trial import measured_image, official_image
from autotune.promote.rendering import provenance_lines
from autotune.records import Caveat, Config, LevelRole, Outcome, ServerFacts
from autotune.search.objective import joined_figures


def test_the_command_line_holds_the_config_and_nothing_else() -> None:
    made = deployment(extra_args=("--trust-remote-code",), port=9000, bind="10.0.0.1")
    assert serve_argv(made) == (
        *("vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct"),
        "--no-enable-prefix-caching",
        *("--max-num-seqs", "128"),
        *("--tensor-parallel-size", "2"),
        *("--host", "10.0.0.1", "--port", "9000"),
        *("--shutdown-timeout", "40"),
        "--trust-remote-code",
    )


def test_the_trials_own_checkpoint_is_the_model() -> None:
    own = trial({"model": "org/m-AWQ", "max-num-seqs": 8})
    made = deployment(own)
    assert made.model == "org/m-AWQ"
    assert made.flags == (("max-num-seqs", 8),)
    assert serve_argv(made)[:5] == ("vllm", "serve", "org/m-AWQ", "--max-num-seqs", "8")
    assert "# model       org/m-AWQ" in render(made, [Target.SHELL])[0].text
    for target in Target:
        for file in render(made, [target]):
            assert "Llama-3.1-8B-Instruct" not in file.text, target
    assert serve_line("org/m", own.config) == "vllm serve org/m-AWQ --max-num-seqs 8"
    assert serve_line("org/m", Config.of({"model": None})) == "vllm serve org/m"


def test_a_checkpoint_in_a_folder_is_rendered_where_it_lies() -> None:
    own = trial({"model": "./awq"})
    with pytest.raises(InvalidOption, match="absolute path"):
        deployment(own)
    facts = StudyFacts(name="s", model="org/m", workload="chat", node=NODE, checkpoints=(("./awq", "/models/awq"),))
    assert facts.model_of(own.config) == "/models/awq"
    assert facts.model_of(trial().config) == "org/m"


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.MEASURED])
def test_only_measured_trials_are_promoted(outcome: Outcome) -> None:
    with pytest.raises(NotPromotable, match=str(outcome)):
        deployment(trial(outcome=outcome))


def test_a_running_trial_is_not_promoted() -> None:
    with pytest.raises(NotPromotable, match="still running"):
        deployment(replace(trial(), result=None))


def test_simulated_figures_need_to_be_allowed() -> None:
    with pytest.raises(NotPromotable, match="simulated"):
        deployment(trial(simulated=True))
    with pytest.raises(NotPromotable, match="simulated"):
        deployment(node=replace(NODE, simulated=True))
    assert deployment(trial(simulated=True), allow_simulated=True).provenance.simulated
    assert not deployment(allow_simulated=True).provenance.simulated


def test_doubts_are_those_of_the_figures_each_once() -> None:
    made = trial()
    assert made.result is not None
    late = Caveat(code="client_late", text="requests left 9 ms late", remedy="r")
    few = Caveat(code="too_few_samples", text="24 requests", remedy="r")
    ramp = replace(measurement(LevelRole.RAMP), caveats=(few,))
    levels = tuple(replace(level, caveats=(late,)) for level in made.result.measurements)
    doubtful = replace(made, result=replace(made.result, measurements=(ramp, *levels)))
    assert deployment(doubtful).provenance.caveats == ("requests left 9 ms late",)


def test_an_unknown_version_is_refused_when_real_and_assumed_when_simulated() -> None:
    silent = ServerFacts()
    with pytest.raises(NotPromotable, match="--vllm-version"):
        deployment(trial(facts=silent))
    assert deployment(trial(facts=silent), vllm_version="0.20.1").vllm_version == "0.20.1"
    assumed = deployment(trial(facts=silent, simulated=True), allow_simulated=True)
    assert not assumed.provenance.version_measured
    named = deployment(trial(facts=ServerFacts(vllm_version="simulated"), simulated=True), allow_simulated=True)
    assert named.vllm_version == assumed.vllm_version
    with pytest.raises(NotPromotable, match="'latest'"):
        deployment(vllm_version="latest")
    assert deployment().provenance.version_measured


@pytest.mark.parametrize(
    ("version", "given"),
    [("0.17.2", False), ("0.18.0", True), ("0.18.0rc1", True), ("0.9.2", False), ("0.32.0+cpu", True), ("1.0", True)],
)
def test_shutdown_timeout_is_given_from_0_18_on(version: str, given: bool) -> None:
    argv = serve_argv(deployment(trial(facts=ServerFacts(vllm_version=version))))
    assert ("--shutdown-timeout" in argv) is given


@pytest.mark.parametrize(("p99_s", "drain_s"), [(2.0, 30), (20.0, 40), (33.2, 67), (900.0, 300)])
def test_the_drain_is_twice_the_slowest_percent_within_bounds(p99_s: float, drain_s: int) -> None:
    assert deployment(trial(e2e_p99_s=p99_s)).drain_s == drain_s


def test_the_operators_own_shutdown_timeout_wins_and_stands_once() -> None:
    made = deployment(extra_args=("--shutdown-timeout", "77"))
    assert made.drain_s == 77
    assert serve_argv(made).count("--shutdown-timeout") == 1
    assert deployment(extra_args=("--shutdown-timeout=78",)).drain_s == 78
    with pytest.raises(InvalidOption, match="seconds"):
        deployment(extra_args=("--shutdown-timeout", "soon"))


def test_secrets_are_named_and_never_kept() -> None:
    made = deployment(
        trial({"env:MY_TOKEN": "s3cret", "env:VLLM_USE_V1": True, "hf_token": "s3cret"}),
        extra_args=("--api-key", "s3cret", "s3cret2", "--hf-token=s3cret", "--seed", "1"),
    )
    assert "s3cret" not in repr(made)
    assert made.extra_args == ("--seed", "1")
    assert set(made.secret_names) == {"HF_TOKEN", "VLLM_API_KEY", "MY_TOKEN"}
    assert made.environment == (("VLLM_USE_V1", "1"),)


def test_where_the_study_listened_is_dropped() -> None:
    made = deployment(
        trial({"port": 1, "max-num-seqs": 4}), extra_args=("--host", "1.2.3.4", "--port=2", "--seed", "3")
    )
    assert made.extra_args == ("--seed", "3")
    assert made.flags == (("max-num-seqs", 4),)


def test_values_are_written_as_argparse_reads_them() -> None:
    values = {
        "enforce_eager": True,
        "gpu-memory-utilization": 0.95,
        "override": "-1x",
        "chat": None,
        "compilation-config": '{"level": 3}',
        "compilation-config.cudagraph_mode": "FULL",
    }
    argv = serve_argv(deployment(trial(values)))
    assert "--enforce-eager" in argv
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.95"
    assert "--override=-1x" in argv
    assert "--chat" not in argv
    assert argv[argv.index("--compilation-config") + 1] == '{"level": 3}'
    assert argv[argv.index("--compilation-config.cudagraph_mode") + 1] == "FULL"


def test_the_bare_api_server_takes_its_model_as_a_flag() -> None:
    command = ("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    argv = serve_argv(deployment(command=command))
    assert argv[:5] == (*command, "--model", "meta-llama/Llama-3.1-8B-Instruct")


def test_a_wrapped_command_takes_the_model_first_and_a_template_is_left_behind() -> None:
    assert serve_argv(deployment(command=("numactl", "-N", "0", "vllm", "serve")))[5].startswith("meta-llama/")
    assert serve_argv(deployment(command=("docker", "run", "img", "--port", "{port}")))[:2] == ("vllm", "serve")


def test_a_switch_without_a_negative_form_is_left_out_when_off() -> None:
    made = deployment(trial({"disable-log-stats": False, "enforce-eager": False}))
    assert "--no-disable-log-stats" not in serve_argv(made)
    assert "--no-enforce-eager" in serve_argv(made)
    (file,) = render(made, [Target.VLLM_CONFIG])
    assert "disable-log-stats" not in file.text
    assert "no-enforce-eager: true" in file.text


@pytest.mark.parametrize("model", ["-rf", "./here", "../up", "~/m", "", "a\0b", "a\ud800"])
def test_a_model_that_cannot_be_passed_on_is_refused(model: str) -> None:
    with pytest.raises(InvalidOption):
        deployment(model=model)


@pytest.mark.parametrize("name", ["a b", "$(x)", "", "env:1X", "env:A-B", "--"])
def test_a_parameter_that_is_no_flag_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption):
        deployment(trial({name: "v"}))


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_ports_outside_their_range_are_refused(port: int) -> None:
    with pytest.raises(InvalidOption, match="--port"):
        deployment(port=port)


@pytest.mark.parametrize("bind", ["", "not an ip", "localhost", "$(x)", "-x", "127.0.0.1 ", "1.2.3.4/8", "::1\n"])
def test_what_a_port_is_published_on_is_an_address(bind: str) -> None:
    with pytest.raises(InvalidOption, match="--bind"):
        deployment(bind=bind)


@pytest.mark.parametrize(
    "image",
    [
        "",
        "--privileged",
        "-x",
        "a b:1",
        "a:1\n",
        "x\ny:1",
        "a:",
        "a/",
        "a//b:1",
        "a:1:2",
        "v/i@sha256:abc",
        "$(x):1",
        "a/B:1",
    ],
)
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(InvalidOption, match="--image"):
        deployment(image=image)


@pytest.mark.parametrize(
    "image", ["img", "img:1", "reg.io:5000/a/b-c_d.e:v1.2-x", f"v/i:1@sha256:{'a' * 64}", "localhost/a"]
)
def test_what_is_an_image_is_taken(image: str) -> None:
    assert deployment(image=image).image == image


@pytest.mark.parametrize(
    "version", ["0.32.0; rm", "0.32.0 --x", "0.32.0\n", "0.32.0\x1b[31m", "v0.32.0", "0", "0.32.0/x"]
)
def test_what_is_no_version_is_not_pinned_whoever_says_it(version: str) -> None:
    with pytest.raises(NotPromotable, match="not one that can be pinned"):
        deployment(vllm_version=version)
    with pytest.raises(NotPromotable, match="not one that can be pinned"):
        deployment(trial(facts=ServerFacts(vllm_version=version)))


def test_pinned_gpus_must_be_as_many_as_the_config_uses() -> None:
    assert deployment(gpu_indices=(2, 3)).gpu_indices == (2, 3)
    with pytest.raises(InvalidOption, match="exactly 2"):
        deployment(gpu_indices=(2,))


def test_a_node_without_gpus_uses_none() -> None:
    assert deployment(node=replace(NODE, gpus=())).gpus == 0


@pytest.mark.parametrize(
    ("version", "gpus", "image"),
    [
        ("0.32.0", 1, "vllm/vllm-openai:v0.32.0"),
        ("0.32.0+cu129", 1, "vllm/vllm-openai:v0.32.0"),
        ("0.32.0+cpu", 0, "vllm/vllm-openai-cpu:v0.32.0"),
        ("0.33.1.dev12+gabc", 1, None),
    ],
)
def test_the_image_is_pinned_to_the_measured_version(version: str, gpus: int, image: str | None) -> None:
    assert official_image(version, gpus=gpus) == image


def test_the_ready_line_is_for_pasting() -> None:
    config = Config.of({"env:VLLM_CPU_KVCACHE_SPACE": 4, "max-num-seqs": 8})
    line = serve_line("org/m", config, fixed=Config.of({"seed": 1, "max-num-seqs": 2}), extra_args=("--x", "a b"))
    assert line == "env VLLM_CPU_KVCACHE_SPACE=4 vllm serve org/m --max-num-seqs 8 --seed 1 --x 'a b'"
    hostile = serve_line("a\n$(touch x)", Config.of({}))
    assert bash_words(hostile) == ["vllm", "serve", "a\n$(touch x)"]
    assert not re.search(r"\n", hostile)


def test_start_up_comes_from_the_server_else_from_the_phase() -> None:
    assert deployment().startup_s == 130.0
    assert deployment(trial(facts=ServerFacts(vllm_version="0.32.0"))).startup_s == 99.0


def test_repeated_figures_are_given_as_means_and_said_to_be() -> None:
    once = trial()
    assert once.result is not None
    # 2,400 tok/s and 250 ms in the first launch; the second brings the means to 2,500 and 300.
    levels = (measurement(LevelRole.THROUGHPUT, tok_s=2600.0), measurement(LevelRole.TTFT, ttft_s=0.35))
    again = replace(once, number=9, repeat_of=7, result=replace(once.result, measurements=levels))
    lines = provenance_lines(deployment(once, figures=joined_figures(once, (once, again))))
    assert "measured    output 2,500.0 tok/s [2,300.0 .. 2,700.0], per GPU 1,250.0 tok/s [1,150.0 .. 1,350.0]" in lines
    assert any(line.startswith("measured    TTFT p95 300 ms") for line in lines)
    assert "measured    2 runs; the figures are their means, the intervals span all of them" in lines
    assert not any(" runs; " in line for line in provenance_lines(deployment(once)))


@pytest.mark.parametrize(
    ("command", "image"),
    [
        ("docker run --rm --gpus all -v /c:/c -p 127.0.0.1:{port}:8000 vllm/vllm-openai:v0.32.0 --model {model}",
         "vllm/vllm-openai:v0.32.0"),
        ("/usr/bin/podman run reg.io:5000/v/img:1 serve {model}", "reg.io:5000/v/img:1"),
        (f"docker run v/img@sha256:{'a' * 64} {{model}}", f"v/img@sha256:{'a' * 64}"),
        ("docker run --gpus all vllm/vllm-openai {model}", None),  # no tag: nobody knows what ran
        ("vllm serve", None),
        ("/opt/v:1/bin/python -m vllm.entrypoints.openai.api_server", None),
    ],
)  # fmt: skip
def test_the_image_that_was_measured_is_the_one_to_run(command: str, image: str | None) -> None:
    assert measured_image(tuple(command.split())) == image
    made = deployment(command=command.split())
    assert made.image == (image or "vllm/vllm-openai:v0.32.0")
    assert deployment(command=command.split(), image="mine:2").image == "mine:2"
