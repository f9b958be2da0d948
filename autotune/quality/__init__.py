"""The quality guard: whether a config still answers as a reference config does."""

from autotune.quality.answers import Answer, Answers, read_answers, write_answers
from autotune.quality.compare import compare
from autotune.quality.lossy import lossy_changes, lossy_names
from autotune.quality.prompts import PromptSet, QualityPrompt, load_prompts

__all__ = [
    "Answer",
    "Answers",
    "PromptSet",
    "QualityPrompt",
    "compare",
    "load_prompts",
    "lossy_changes",
    "lossy_names",
    "read_answers",
    "write_answers",
]
