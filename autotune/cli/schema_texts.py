"""What the keys of study and workload files mean, for their JSON Schemas.

By class of the border model and key. A description that a model's field has itself goes first, so a model may take its
texts over one by one. docs/settings.md says the same at length.
"""

from __future__ import annotations

TITLES = {
    "space": (
        "autotune search space",
        "Flags of `vllm serve` and variables of its environment, with the values to try.",
    ),
    "workload": ("autotune workload", "Which requests arrive: lengths, shared prefixes, load levels."),
    "study": ("autotune study", "What `autotune study --file` is asked to do; the command line goes first."),
}
"""Title and description of each schema."""

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "StudyFile": {
        "description": "For people. Not used.",
        "name": "Name of the study and of its folder; the same name goes on where it stopped.",
        "model": "A folder with config.json, or a model name such as meta-llama/Llama-3.1-8B-Instruct.",
        "workload": "Which requests arrive: a shipped workload's name, or the path of a file.",
        "space": "What is searched: a shipped space's name, or the path of a YAML file.",
        "numbers": "The workload from four numbers of real traffic, instead of `workload`.",
        "checkpoints": "Quantised checkpoints of the same model that a generated space compares.",
        "default_node": "The node to simulate where this machine has no GPU.",
        "min_model_len": "No config may admit fewer tokens per request than this.",
        "engine": "auto: real servers where there is a GPU, the simulation where there is none.",
        "node": "A node to simulate, such as 4xA100-80GB-NVLink.",
        "gpus": "Physical indices of the GPUs to use, as nvidia-smi numbers them.",
        "vllm_command": "The server command; default `vllm serve`.",
        "extra_args": "Flags of every launch, the baseline included, as a list of words.",
        "trials": "Trials to reach, the baseline included.",
        "gpu_busy": "While somebody else uses the GPUs: wait, stop, or wait so long, e.g. 30m.",
        "parallel": "Trials at once on the node: auto, or a number; default 1.",
        "executor": "Where trials run: local, or ray, each on a node of a Ray cluster.",
        "ray_address": "With executor ray: HOST:PORT of the cluster's head; auto finds it.",
        "ray_nodes": "With executor ray: the nodes to use, by host name, address or kind.",
        "max_time_s": "Seconds that one run of the study may take, launches again included.",
        "max_gpu_hours": "Hours times GPUs used that the study may cost, all its runs together.",
        "min_gain": "The study ends when no config is expected to enlarge the front's hypervolume by this share.",
        "abandon": "Confidence with which a trial must be shown to be worse than another to end early; 0 for never.",
        "notify_command": "Run when the study ends, as a list of words, with a summary as JSON on standard input.",
        "notify_url": "Where a summary is POSTed when the study ends; better in AUTOTUNE_NOTIFY_URL.",
        "repeats": "Most launches again of one config at the end: of baseline, pick, and what may belong on the front.",
        "sampler": "prior, tpe, nsga2, gp, random, qmc or grid.",
        "seed": "Of prompts, arrival times and proposals.",
        "load": "The two load levels, per GPU used; left out, they are found on the baseline.",
        "objective": "throughput, or goodput: per config the highest rate that meets `slo`.",
        "slo": 'Limits that the pick must meet, e.g. "ttft_p95<=500ms,tpot_p95<=50ms,error_rate<=0".',
        "start_deadline_s": "Seconds until a server must be ready.",
        "stall_deadline_s": "Seconds without a new milestone after which a start counts as hung.",
        "level_deadline_s": "Seconds that one load level may take.",
        "attempts": "Launches of one trial when the environment is at fault.",
        "retry_pause_s": "Seconds before a spoilt trial is launched again; doubled each time, up to a minute.",
        "stop_grace_s": "Seconds that a server gets from TERM to KILL.",
        "starting_points": "Configs to try right after the baseline: one value for each parameter of the space.",
        "quality": "How it is seen whether configs that change a model's numbers still answer alike.",
    },
    "QualityFile": {
        "enabled": "Whether the guard asks at all; it does so only where something changes numerics.",
        "prompts": "Path of a file of prompts, instead of the shipped ones.",
        "perplexity_ratio": "Of the prompts' own text, config over reference, at most.",
        "logprob_gap": "Mean absolute difference of a prompt token's log-probability, nats, at most.",
        "agreement": "Share of the reference's greedy tokens until the first that differs, at least.",
    },
    "LoadFile": {
        "concurrency": "Requests in flight at the throughput level, per GPU used.",
        "rate_rps": "Requests per second of the p95 TTFT level, per GPU used.",
        "requests": "Requests of each level, per GPU used.",
    },
    "NumbersFile": {
        "prompt_mean": "Mean tokens of a prompt.",
        "prompt_p95": "95th percentile of prompts; left out, all are as long as the mean.",
        "output_mean": "Mean tokens of an answer.",
        "concurrency": "Requests at once that the search for the baseline's capacity ends with, per GPU.",
    },
    "_WorkloadYaml": {
        "name": "Shown in plans and reports; default: the file's name.",
        "description": "For people.",
        "api": "Which endpoint the requests go to.",
        "prompt_tokens": "Tokens of a prompt that no other request shares.",
        "output_tokens": "Tokens that each request generates.",
        "shared_prefixes": "Openings that several requests share, on top of their own prompt.",
        "turns": "Conversations: each turn carries what went before.",
        "arrivals": "How the requests of an open loop come; without it as a Poisson stream.",
        "requests": "How many requests make a level, per GPU.",
        "concurrency": "Where the search for the baseline's capacity begins and ends, per GPU.",
        "seed": "Of lengths, prefixes and their order.",
        "longest_request_tokens": "The longest request that must be admitted, prompt and output together.",
        "slo": 'Limits that the pick must meet unless a study says others, e.g. "ttft_p95<=500ms,tpot_p95<=50ms".',
    },
    "_LengthsYaml": {
        "fixed": "Always this many tokens.",
        "min": "Smallest of evenly spread lengths; with max.",
        "max": "Largest of evenly spread lengths, or where a log-normal is cut.",
        "mean": "Mean length; with spread, or with p95.",
        "spread": "Half the width around the mean, as a share of it: 0.5 is from half to one and a half.",
        "p95": "95th percentile of a log-normal with this mean.",
    },
    "_PrefixesYaml": {
        "count": "How many different prefixes there are.",
        "tokens": "Length of each.",
        "share": "Share of the requests that open with one.",
    },
    "_TurnsYaml": {
        "count": "Turns of a conversation.",
        "think_s": "Seconds between an answer and the next turn, on average.",
        "longest_tokens": "A conversation ends before it is longer than this.",
    },
    "_ArrivalsYaml": {
        "process": "constant: even gaps; poisson; gamma: gaps of any burstiness; ramp: Poisson of a rate that changes.",
        "cv": "Of gamma: coefficient of variation of the gaps; 1 is Poisson, above is burstier.",
        "from": "Of a ramp: the rate at the start; only its ratio to the end's counts, the level sets the mean.",
        "to": "Of a ramp: the rate at the end.",
    },
    "_RequestsYaml": {
        "per_slot": "The throughput level sends at least this many per concurrent slot.",
        "ttft": "The p95 TTFT level sends at least this many.",
        "level_s": "Levels are lengthened to about this many seconds at the baseline's capacity.",
        "most": "No level is lengthened beyond this many requests.",
        "ttft_most_s": "The p95 TTFT level grows to at most about this many seconds while its interval is too wide.",
        "warmup_per_slot": "Warm-up requests per concurrent slot.",
    },
    "_ConcurrencyYaml": {
        "start": "Concurrency that the ramp begins with, per GPU.",
        "max": "Concurrency that the ramp does not exceed, per GPU.",
    },
    "_SloYaml": {"ttft_p95_ms": "p95 time to first token, in milliseconds."},
}
