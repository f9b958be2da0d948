"""What operators get wrong: the command, how it must end, and what the message must hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune_command import LLAMA, SIMULATED_SERVER

from autotune.errors import ExitCode

MODEL = ("--model", LLAMA)
STUDY = ("study", *MODEL, "--workload", "tiny")
REAL = (*STUDY, "--space", "scheduler", "--engine", "process")
SPACE = "name: s\nparameters:\n  max-num-seqs: {choices: [32, 64]}\n"
WORKLOAD = "prompt_tokens: {fixed: 16}\noutput_tokens: {fixed: 8}\n"
STUDY_FILE = f"model: {LLAMA}\nworkload: tiny\n"
LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
HOSTILE = "a: !!python/object/apply:os.system ['touch studies/owned']\n"
SCRIPT = "#!/bin/sh\n"
CONFIG = (
    '{{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": {hidden}, "intermediate_size": 64,'
    ' "num_attention_heads": {heads}, "vocab_size": 128, "max_position_embeddings": 4096}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command.

    Attributes:
        says: words that standard error must hold; `{folder}` is the working folder.
        files: made before, by path; text or bytes. `*.sh` becomes executable. None makes a folder.
    """

    name: str
    words: tuple[str, ...]
    code: ExitCode
    says: tuple[str, ...]
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


def case(
    name: str,
    words: tuple[str, ...],
    code: ExitCode,
    *says: str,
    files: Mapping[str, str | bytes | None] | None = None,
    env: Mapping[str, str] | None = None,
) -> Case:
    return Case(name=name, words=words, code=code, says=says, files=files or {}, env=env or {})


def study_file(name: str, content: str | bytes | None, *says: str, code: ExitCode = ExitCode.INVALID_FILE) -> Case:
    words = ("study", "--file", "mine.yaml")
    return case(f"study-file-{name}", words, code, *says, files={"mine.yaml": content})


def space(name: str, content: str | bytes | None, *says: str, code: ExitCode = ExitCode.INVALID_FILE) -> Case:
    return case(f"space-{name}", (*STUDY, "--space", "mine.yaml"), code, *says, files={"mine.yaml": content})


def workload(name: str, content: str | bytes | None, *says: str) -> Case:
    words = ("study", *MODEL, "--workload", "mine.yaml")
    return case(f"workload-{name}", words, ExitCode.INVALID_FILE, *says, files={"mine.yaml": content})


def option(name: str, *words: str, says: tuple[str, ...], code: ExitCode = ExitCode.INVALID_OPTION) -> Case:
    return case(f"option-{name}", (*STUDY, *words), code, *says)


def command(name: str, text: str, *says: str, files: Mapping[str, str | bytes | None] | None = None) -> Case:
    words = (*REAL, "--start-deadline", "20", "--vllm-command", text)
    return case(f"command-{name}", words, ExitCode.VLLM_COMMAND, *says, files=files)


UNKNOWN_NAMES = (
    case(
        "model", ("study", "--model", "meta-llama/Llama-9"), ExitCode.UNKNOWN_MODEL, "'meta-llama/Llama-9'", "catalogue"
    ),
    case("model-too-long", ("study", "--model", "m" * 5000), ExitCode.UNKNOWN_MODEL, "unknown model"),
    case("model-not-text", ("study", "--model", "a\udcffb"), ExitCode.UNKNOWN_MODEL, "unknown model"),
    case(
        "model-no-home", ("plan", "--model", "a/b"), ExitCode.INVALID_OPTION, "HF_HOME", env={"HF_HOME": "~nobody9/x"}
    ),
    case(
        "model-empty-folder",
        ("study", "--model", "empty"),
        ExitCode.UNKNOWN_MODEL,
        "config.json",
        files={"empty": None},
    ),
    case(
        "workload", ("study", *MODEL, "--workload", "chatt"), ExitCode.UNKNOWN_WORKLOAD, "'chatt'", "did you mean: chat"
    ),
    case("workload-no-file", ("study", *MODEL, "--workload", "no/w.yaml"), ExitCode.UNKNOWN_WORKLOAD, "no/w.yaml"),
    case(
        "workload-long",
        ("study", *MODEL, "--workload", "w" * 5000 + ".yaml"),
        ExitCode.UNKNOWN_WORKLOAD,
        "unknown workload",
    ),
    case("space", (*STUDY, "--space", "defualt"), ExitCode.UNKNOWN_SPACE, "'defualt'", "did you mean: default"),
    case("space-no-file", (*STUDY, "--space", "./none.yaml"), ExitCode.UNKNOWN_SPACE, "./none.yaml"),
    case("node", (*STUDY, "--node", "4xA100-81GB"), ExitCode.UNKNOWN_NODE, "A100", "40GB", "80GB"),
    case("node-form", (*STUDY, "--node", "a hundred GPUs"), ExitCode.UNKNOWN_NODE, "a hundred GPUs", "<count>x<GPU>"),
    case("node-digits", (*STUDY, "--node", "9" * 5000 + "xH100"), ExitCode.UNKNOWN_NODE, "<count>x<GPU>"),
    case("node-memory", ("capacity", *MODEL, "--node", "1xH100-" + "9" * 5000), ExitCode.UNKNOWN_NODE, "<count>x<GPU>"),
    case("node-count", (*STUDY, "--node", "99999999999999999999xH100"), ExitCode.UNKNOWN_NODE, "1 to 16"),
    case("study-file", ("study", "--file", "nothing"), ExitCode.UNKNOWN_STUDY, "'nothing'"),
    case("study-file-path", ("study", "--file", "no/such.yaml"), ExitCode.UNKNOWN_STUDY, "no/such.yaml"),
    case("study", ("show", "nosuch", "0"), ExitCode.UNKNOWN_STUDY, "'nosuch'", "no database"),
    case("study-pareto", ("pareto", "nosuch"), ExitCode.UNKNOWN_STUDY, "nosuch"),
    case("study-logs", ("logs", "nosuch"), ExitCode.UNKNOWN_STUDY, "nosuch"),
    case("study-stop", ("stop", "nosuch"), ExitCode.UNKNOWN_STUDY, "nosuch"),
    case("study-promote", ("promote", "nosuch", "--target", "shell", "--out", "o"), ExitCode.UNKNOWN_STUDY, "nosuch"),
)

USAGE = (
    case("usage-command", ("frobnicate",), ExitCode.USAGE, "frobnicate"),
    case("usage-option", ("study", "--modle", "x"), ExitCode.USAGE, "--modle", "--model"),
    case("usage-number", ("study", "--repeats", "many"), ExitCode.USAGE, "--repeats", "integer"),
    case("usage-range", ("study", "--repeats", "-1"), ExitCode.USAGE, "--repeats", "0"),
    case("usage-argument", ("show", "s", "first"), ExitCode.USAGE, "trial", "integer"),
    case("usage-missing", ("promote", "s"), ExitCode.USAGE, "--target"),
    case("usage-server", ("simulate-server", "--frob"), ExitCode.USAGE, "--frob"),
    case("usage-fault", ("simulate-server", "--sim-fault", "boredom"), ExitCode.USAGE, "boredom", "oom-at-load"),
)

FLAGS = (
    case(
        "flag-after",
        (*REAL, "--vllm-command", SIMULATED_SERVER, "--", "--max-modle-len", "4096"),
        ExitCode.UNKNOWN_FLAG,
        "max-modle-len",
        "max-model-len",
        "after --",
    ),
    case(
        "flag-choice",
        (*REAL, "--vllm-command", SIMULATED_SERVER, "--", "--dtype", "bfloat61"),
        ExitCode.INVALID_OPTION,
        "bfloat61",
        "bfloat16",
    ),
    case(
        "flag-space",
        (
            "study",
            *MODEL,
            "--workload",
            "tiny",
            "--space",
            "mine.yaml",
            "--engine",
            "process",
            "--vllm-command",
            SIMULATED_SERVER,
        ),
        ExitCode.UNKNOWN_FLAG,
        "max-nun-seqs",
        "search space 's'",
        files={"mine.yaml": SPACE.replace("num", "nun")},
    ),
    case(
        "flag-study-file",
        ("study", "--file", "mine.yaml", "--vllm-command", SIMULATED_SERVER),
        ExitCode.UNKNOWN_FLAG,
        "max-modle-len",
        files={"mine.yaml": STUDY_FILE + "space: scheduler\nengine: process\nextra_args: [--max-modle-len, '4096']\n"},
    ),
    case("flag-word", (*STUDY, "--", "chatty"), ExitCode.INVALID_OPTION, "'chatty'", "long form"),
    case("flag-managed", (*STUDY, "--", "--port", "1"), ExitCode.INVALID_OPTION, "--port"),
    case(
        "flag-searched",
        (*STUDY, "--space", "default", "--", "--max-num-seqs", "1"),
        ExitCode.INVALID_OPTION,
        "--max-num-seqs",
        "varies",
    ),
    case("numbers-half", ("plan", *MODEL, "--prompt-mean", "9"), ExitCode.INVALID_OPTION, "--output-mean"),
    case(
        "numbers-p95",
        ("plan", *MODEL, "--prompt-mean", "100", "--prompt-p95", "50", "--output-mean", "9"),
        ExitCode.INVALID_OPTION,
        "--prompt-p95",
        "at least the mean",
    ),
    case("checkpoints-twice", (*STUDY, "--checkpoints", "a,a"), ExitCode.INVALID_OPTION, "--checkpoints", "different"),
    case(
        "checkpoints-in-a-file",
        (*STUDY, "--space", "default", "--checkpoints", "auto"),
        ExitCode.INVALID_OPTION,
        "checkpoints",
        "--space auto",
    ),
    case("min-model-len", (*STUDY, "--min-model-len", "9999999"), ExitCode.NO_FEASIBLE_CONFIG, "131072"),
    case("compare-one", ("compare", "s"), ExitCode.INVALID_OPTION, "A B"),
    case("compare-unknown", ("compare", "nosuch:0", "nosuch:1"), ExitCode.UNKNOWN_STUDY, "nosuch"),
    case("compare-price", ("compare", "s", "0", "1", "--gpu-hour-price", "nan"), ExitCode.INVALID_OPTION, "above 0"),
    case("gc-age", ("gc", "--older-than", "soon"), ExitCode.INVALID_OPTION, "soon"),
    case("schema", ("schema", "nothing"), ExitCode.USAGE, "nothing", "workload"),
)

FILES = (
    study_file("key", STUDY_FILE + "trails: 4\n", "mine.yaml", "trails", "trials"),
    study_file("value", STUDY_FILE + "trials: many\n", "trials", "many", "integer"),
    study_file("range", STUDY_FILE + "trials: 0\n", "trials", "greater than or equal to 1"),
    study_file("numbers-too", STUDY_FILE + "numbers: {prompt_mean: 9, output_mean: 9}\n", "numbers", "either"),
    study_file("load-key", STUDY_FILE + "load: {speed: 3}\n", "load.speed", "concurrency, rate_rps, requests"),
    study_file("engine", STUDY_FILE + "engine: warp\n", "engine", "warp", "simulated"),
    study_file("number-key", STUDY_FILE + "7: 8\n", "mine.yaml", "7"),
    study_file("syntax", "model: [\n", "line 2", "plain YAML"),
    study_file("list", "- model\n", "mapping"),
    study_file("empty", "", "mapping"),
    study_file("twice", STUDY_FILE + "model: x\n", "line 3", "'model' is given twice"),
    study_file("nesting", "model: " + "[" * 20_000, "nested too deeply"),
    study_file("nesting-maps", "a: {" * 20_000, "nested too deeply"),
    study_file("object", HOSTILE, "line 1", "python/object"),
    study_file("alias", LAUGHS, "alias *a"),
    study_file("size", b"#" * 10_000_000, "10000000 bytes", "at most"),
    study_file("nul", b"model: x\0y\n", "position 8"),
    study_file("escape", 'model: "x\\0y"\n', "control character"),
    study_file("binary", bytes(range(256)) * 40, "not UTF-8"),
    study_file("folder", None, "a folder"),
    study_file("huge-number", STUDY_FILE + f"trials: 0x{'f' * 6000}\n", "64 bits"),
    study_file(
        "point",
        STUDY_FILE + "space: scheduler\nstarting_points: [{max-num-seqs: 7}]\n",
        "starting_points",
        "max-num-seqs=7",
        code=ExitCode.INVALID_OPTION,
    ),
    space("key", SPACE + "color: red\n", "mine.yaml at color", "name, description, parameters, fixed"),
    space(
        "value", "name: s\nparameters:\n  max-num-seqs: {choices: 7}\n", "parameters.max-num-seqs.choices", "7", "list"
    ),
    space("name", "name: s\nparameters:\n  --max-num-seqs: {choices: [7]}\n", "without dashes"),
    space("secret", SPACE + "fixed: {api-key: hunter2}\n", "fixed.api-key", "no secrets"),
    space("syntax", "name: s\nparameters: {a: [\n", "line 3"),
    space("twice", SPACE + "  max-num-seqs: {choices: [1]}\n", "'max-num-seqs' is given twice"),
    space("nesting", "[" * 20_000, "nested too deeply"),
    space("object", HOSTILE, "python/object"),
    space("size", b" " * 10_000_000, "at most"),
    space("nul", SPACE.encode() + b"\0", "position"),
    space("binary", b"\x89PNG\r\n\x1a\n" * 1000, "not UTF-8"),
    space("folder", None, "a folder"),
    space("infinite", "name: s\nparameters:\n  gpu-memory-utilization: {choices: [.inf]}\n", "the number inf"),
    workload("key", WORKLOAD + "promt: 3\n", "promt", "prompt_tokens"),
    workload("value", WORKLOAD + "api: grpc\n", "api", "grpc", "chat"),
    workload("missing", "output_tokens: {fixed: 8}\n", "prompt_tokens", "must be given"),
    workload("syntax", "prompt_tokens: {fixed: 16\n", "line 2"),
    workload("twice", WORKLOAD + "output_tokens: {fixed: 9}\n", "given twice"),
    workload("nesting", "a: " + "{b: " * 20_000, "nested too deeply"),
    workload("object", HOSTILE, "python/object"),
    workload("size", b"a" * 10_000_000, "at most"),
    workload("nul", WORKLOAD.encode() + b"# \0\n", "position"),
    workload("binary", b"\x1f\x8b\x08\x00" * 500, "mine.yaml"),
    workload("folder", None, "a folder"),
    case("workload-device", ("study", *MODEL, "--workload", "/dev/zero"), ExitCode.INVALID_FILE, "a device"),
    case(
        "model-not-json",
        ("study", "--model", "m"),
        ExitCode.INVALID_FILE,
        "m/config.json",
        files={"m/config.json": "{"},
    ),
    case(
        "model-nesting",
        ("study", "--model", "m"),
        ExitCode.INVALID_FILE,
        "nested",
        files={"m/config.json": "[" * 100_000},
    ),
    case(
        "model-no-key",
        ("study", "--model", "m"),
        ExitCode.INVALID_FILE,
        "num_hidden_layers",
        files={"m/config.json": '{"model_type": "llama"}'},
    ),
    case(
        "model-huge",
        ("study", "--model", "m"),
        ExitCode.INVALID_FILE,
        "hidden_size",
        files={"m/config.json": CONFIG.format(hidden="1" + "0" * 400, heads=4)},
    ),
    case(
        "model-no-head",
        ("study", "--model", "m"),
        ExitCode.INVALID_FILE,
        "hidden_size",
        "64 heads",
        files={"m/config.json": CONFIG.format(hidden=32, heads=64)},
    ),
    case("log", ("diagnose", "no.log"), ExitCode.INVALID_FILE, "no.log", "No such file"),
    case("log-folder", ("diagnose", "."), ExitCode.INVALID_FILE, "log file"),
)

INFEASIBLE = (
    space(
        "infeasible",
        "name: mine\nparameters:\n  tensor-parallel-size: {choices: [2, 4]}\n",
        "'mine'",
        "1xH100-80GB",
        "2 configs",
        code=ExitCode.NO_FEASIBLE_CONFIG,
    ),
    case(
        "infeasible-model",
        ("study", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--node", "1xL4-24GB"),
        ExitCode.NO_FEASIBLE_CONFIG,
        "1xL4-24GB",
        "larger",
    ),
)

OPTIONS = (
    case("option-model", ("study", "--workload", "tiny"), ExitCode.INVALID_OPTION, "--model"),
    option("engine", "--engine", "warp", says=("--engine", "'warp'", "simulated")),
    option("gpus", "--engine", "process", "--gpus", "first", says=("--gpus", "'first'")),
    option("gpus-empty", "--engine", "process", "--gpus", "", says=("--gpus",)),
    option("gpus-digit", "--engine", "process", "--gpus", "²", says=("--gpus",)),
    option("gpus-twice", "--engine", "process", "--gpus", "0,0", says=("--gpus", "different")),
    option("gpus-none-here", "--engine", "process", "--gpus", "0", says=("--gpus", "no NVIDIA GPU")),
    option("gpus-simulated", "--node", "4xH100", "--gpus", "0", says=("--gpus", "--node")),
    option("node-process", "--engine", "process", "--node", "1xH100", says=("--node", "this machine")),
    option(
        "command-simulated",
        "--engine",
        "simulated",
        "--vllm-command",
        "vllm serve",
        says=("--vllm-command", "--engine process"),
    ),
    option("load", "--load", "fast", says=("--load", "'fast'", "concurrency=N")),
    option("load-zero", "--load", "concurrency=0", says=("--load",)),
    option("load-nan", "--load", "rate=nan", says=("--load",)),
    option("load-much", "--load", "concurrency=1000000", says=("--load", "65,536")),
    option("load-twice", "--load", "rate=1,rate=2", says=("--load",)),
    option("load-half", "--load", "requests=1.5", says=("--load",)),
    option("trials", "--trials", "many", says=("--trials", "+N")),
    option("trials-zero", "--trials", "0", says=("--trials", "positive")),
    option("trials-plus-zero", "--trials", "+0", says=("--trials",)),
    option("slo", "--slo", "fast please", says=("--slo", "ttft_p95<=500ms")),
    option("slo-metric", "--slo", "joy<=5ms", says=("--slo", "'joy'", "ttft_p95")),
    option("slo-zero", "--slo", "ttft_p95<=0ms", says=("--slo", "above 0")),
    option("executor", "--executor", "slurm", says=("--executor", "'slurm'", "local, ray")),
    option("ray-nodes-local", "--ray-nodes", "gpu01", says=("--ray-nodes", "without --executor ray")),
    option("ray-client", "--executor", "ray", "--ray-address", "ray://h:10001", says=("--ray-address", "HOST:PORT")),
    option("ray-port", "--executor", "ray", "--ray-address", "gpu01:99999", says=("--ray-address", "HOST:PORT")),
    option("ray-gpus", "--executor", "ray", "--gpus", "0", says=("--gpus", "--ray-nodes")),
    option(
        "ray-away",
        *("--executor", "ray", "--ray-address", "127.0.0.1:9"),
        says=("Ray", "docs/nodes.md"),
        code=ExitCode.CLUSTER_UNUSABLE,
    ),
    option("pick", "--pick", "best", says=("--pick", "'best'", "knee")),
    option("sampler", "--sampler", "cma", says=("--sampler", "'cma'", "nsga2")),
    option("name-empty", "--name", "", says=("--name",)),
    option("name-up", "--name", "../../etc/cron.d/x", says=("--name", "letters")),
    option("name-absolute", "--name", "/tmp/x", says=("--name",)),
    option("name-dots", "--name", "..", says=("--name",)),
    option("name-hidden", "--name", ".lock", says=("--name",)),
    option("name-newline", "--name", "a\nb", says=("--name",)),
    option("name-escape", "--name", "a\x1b[31m", says=("--name",)),
    option("name-long", "--name", "n" * 65, says=("--name", "1-64")),
    option("name-database", "--name", "autotune.db", says=("--name", "database")),
    option("name-journal", "--name", "autotune.db-wal", says=("--name", "database")),
    option("name-words", "--name", "a b", says=("--name",)),
    case(
        "option-busy",
        ("list",),
        ExitCode.INVALID_OPTION,
        "AUTOTUNE_BUSY_TIMEOUT_S",
        "'soon'",
        env={"AUTOTUNE_BUSY_TIMEOUT_S": "soon"},
    ),
    case("option-picture", ("pareto", "s", "--picture", "front.bmp"), ExitCode.INVALID_OPTION, "--picture", ".svg"),
    case("option-export-out", ("export", "s", "--out", "-"), ExitCode.INVALID_OPTION, "--out", "whole path"),
    case(
        "option-promote-out",
        ("promote", "s", "--target", "shell", "--out", "-"),
        ExitCode.INVALID_OPTION,
        *("--out", "a folder", "whole path"),
    ),
    case("option-rollback-out", ("rollback", "d", "--out", "-"), ExitCode.INVALID_OPTION, "--out", "a folder"),
    case(
        "option-measure-out",
        ("measure", "--url", "http://127.0.0.1:9", "--workload", "tiny", "--out", "-"),
        ExitCode.INVALID_OPTION,
        *("--out", "a folder"),
    ),
    case(
        "option-target",
        ("promote", "s", "--target", "windows", "--out", "o"),
        ExitCode.INVALID_OPTION,
        "'windows'",
        "systemd",
    ),
)

STORAGE = (
    option("storage-mysql", "--storage", "mysql://me:hunter2@h/db", says=("mysql", "SQLite"), code=ExitCode.STORAGE),
    option(
        "storage-driver", "--storage", "sqlite+aiosqlite:///x.db", says=("sqlite+aiosqlite",), code=ExitCode.STORAGE
    ),
    option("storage-port", "--storage", "postgresql://h:port/db", says=("URL", "postgresql://"), code=ExitCode.STORAGE),
    option("storage-memory", "--storage", "sqlite://", says=("stays",), code=ExitCode.STORAGE),
    option("storage-proc", "--storage", "/proc/studies.db", says=("/proc/studies.db",), code=ExitCode.STORAGE),
    option("storage-device", "--storage", "/dev/full", says=("/dev/full",), code=ExitCode.STORAGE),
    case("storage-folder", (*STUDY, "--storage", "d"), ExitCode.STORAGE, "cannot be opened", files={"d": None}),
    case(
        "storage-text",
        (*STUDY, "--storage", "notes"),
        ExitCode.STORAGE,
        "not a database",
        files={"notes": "no database " * 100},
    ),
    case("storage-review", ("list", "--storage", "none.db"), ExitCode.STORAGE, "no database"),
    case(
        "studies-below-file",
        (*STUDY, "--studies-dir", "f/studies"),
        ExitCode.STORAGE,
        "f/studies",
        "--studies-dir",
        files={"f": "x"},
    ),
    case("studies-is-file", (*STUDY, "--studies-dir", "f"), ExitCode.STORAGE, "--studies-dir", files={"f": "x"}),
    case("studies-proc", (*STUDY, "--studies-dir", "/proc/autotune"), ExitCode.STORAGE, "/proc/autotune"),
    case("studies-long", (*STUDY, "--studies-dir", "s" * 300), ExitCode.STORAGE, "too long"),
)

COMMANDS = (
    command("missing", "/no/such/vllm serve", "/no/such/vllm", "does not exist", "--vllm-command"),
    command("not-in-path", "vllm-of-my-dreams serve", "vllm-of-my-dreams", "PATH"),
    command("not-executable", "./plain serve", "./plain", "is not executable", files={"plain": "x"}),
    command("folder", "./d serve", "./d", files={"d": None}),
    command("true", "true", "does not answer like vLLM", "(no output)"),
    command("ls", "ls", "--help=all"),
    command("cat", "cat", "--help=all"),
    command("python", sys.executable, "interpreter without a module"),
    command("no-vllm", f"{sys.executable} -S -m vllm.entrypoints.openai.api_server", "No module named"),
    command("empty", "", "empty"),
    command("quotes", "vllm 'serve", "No closing quotation"),
    command("bad-format", "./binary.sh serve", "Exec format error", files={"binary.sh": b"\x7fELF" + b"\0" * 60}),
    command(
        "noise",
        "./noise.sh",
        "does not answer like vLLM",
        files={"noise.sh": SCRIPT + "head -c 3000000 /dev/urandom\n"},
    ),
    command(
        "fails", "./fails.sh", "status 3", "out of luck", files={"fails.sh": SCRIPT + "echo out of luck >&2; exit 3\n"}
    ),
    case(
        "command-environment",
        (*REAL,),
        ExitCode.VLLM_COMMAND,
        "AUTOTUNE_VLLM_COMMAND",
        "/no/such/vllm",
        env={"AUTOTUNE_VLLM_COMMAND": "/no/such/vllm serve"},
    ),
    case("command-default", (*REAL,), ExitCode.VLLM_COMMAND, "vllm serve", "the default", env={"PATH": "/nowhere"}),
)

CASES = (*UNKNOWN_NAMES, *USAGE, *FLAGS, *FILES, *INFEASIBLE, *OPTIONS, *STORAGE, *COMMANDS)
