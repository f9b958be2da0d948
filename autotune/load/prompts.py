"""What a planned request says: words, token ids, or a text of the workload's own. Pure functions of seeds.

The server counts a prompt as `overhead + tokens of the text`, the overhead being what it adds itself (beginning of
sequence, chat template). Which of three ways is taken depends on what is known of its tokenizer (preparing.py):

```
pooled words   words that are one token each wherever they stand: exact without encoding a prompt
fitted text    a tokenizer that cuts most words: each prompt is encoded and corrected (fitting.py)
token ids      no tokenizer at all: the ids themselves are the prompt, on /v1/completions; exact
```

and `render_prompt` with a `Calibration` for a server that only tells how many tokens it counted: within 2 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.records import PlannedRequest

GROUP = 8
"""Words that are tried together when a pool is chosen: one word of several tokens costs its group."""

MIN_POOL = 64
"""Fewer words than this would repeat each other's neighbourhoods; the pool is then not used."""

_SPECIAL_SHARE = 0.05
_LOW_IDS = 1000
"""Special and added tokens stand at either end of a vocabulary: the first 1,000 ids of Mistral's, 259 of Llama 2's,
the last 1.1 % of Llama 4's and less of others'. Bytes and unused ids stand at the beginning, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation, as /v1/chat/completions takes it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A prompt of several messages, sent as they are."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIds:
    """A prompt in the server's own tokens; only /v1/completions takes it."""

    ids: tuple[int, ...]


Prompt = str | Conversation | TokenIds
"""What is sent: a text (one user message on the chat API), a conversation, or token ids."""

Render = Callable[[PlannedRequest], Prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How the server's tokenizer counts our words: tokens = overhead_tokens + tokens_per_word x words.

    Attributes:
        overhead_tokens: what every prompt carries besides its words (beginning of sequence, chat template).
    """

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WordPool:
    """Words that are one token each.

    Attributes:
        words: one token inside a text.
        openers: those of them that are known to be one token at the very beginning as well.
        overhead_tokens: what the counter added to every text.
    """

    words: tuple[str, ...]
    openers: tuple[str, ...]
    overhead_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    """Token ids `low`..`high - 1`, none of them special as far as can be known."""

    low: int
    high: int


def fit_calibration(*, words: int, pieces: int, tokens: int, tokens_halved: int) -> Calibration:
    """Calibration from one vocabulary counted twice: cut into `pieces` texts, and into twice as many.

    Cutting a text in two adds the overhead once more and no word, so (tokens_halved - tokens) / pieces is the overhead.

    Args:
        words: of the whole vocabulary.
        tokens, tokens_halved: sums over all texts of either cut.

    Raises:
        ValueError: nothing is left for the words, so these are not counts of such texts.
    """
    overhead = (tokens_halved - tokens) / pieces
    in_words = tokens - pieces * overhead
    if in_words <= 0:
        raise ValueError(f"{tokens} and {tokens_halved} tokens are no counts of the same {words} words")
    return Calibration(tokens_per_word=in_words / words, overhead_tokens=overhead)


def pool_groups(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of GROUP words to try, short words first: those are one token most often, and cost no longer one."""
    ordered = sorted(dict.fromkeys(words), key=lambda word: (len(word), word))
    return tuple(tuple(ordered[at : at + GROUP]) for at in range(0, len(ordered) - GROUP + 1, GROUP))


def pool_texts(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Per group the two texts whose tokens `choose_pool` wants: its words once, and twice over."""
    for group in groups:
        yield " ".join(group), " ".join([*group, *group])


def choose_pool(groups: Sequence[Sequence[str]], counts: Sequence[tuple[int, int]]) -> WordPool | None:
    """The words that are one token each; None where too few are.

    A group's second copy adds one token per word when every word is one token inside a text. Its first copy then tells
    the overhead, unless its first word is more than one token at the beginning; most are not.

    Args:
        counts: tokens of the two texts of each group, overhead included.
    """
    passed = [
        (group, once - GROUP)
        for group, (once, twice) in zip(groups, counts, strict=True)
        if twice - once == GROUP and once >= GROUP
    ]
    if len(passed) * GROUP < MIN_POOL:
        return None
    overhead = Counter(over for _, over in passed).most_common(1)[0][0]
    openers = tuple(group[0] for group, over in passed if over == overhead)
    return WordPool(
        words=tuple(word for group, _ in passed for word in group), openers=openers, overhead_tokens=overhead
    )


def id_range(vocab_size: int) -> IdRange | None:
    """The middle of a vocabulary; None where it is too small to draw from."""
    low, high = min(_LOW_IDS, vocab_size // 8), int(vocab_size * (1 - _SPECIAL_SHARE))
    return IdRange(low=low, high=high) if high - low >= MIN_POOL else None


def render_prompt(
    request: PlannedRequest,
    words: Sequence[str],
    *,
    calibration: Calibration | None = None,
    openers: Sequence[str] = (),
    study_salt: int = 0,
) -> str:
    """Text of `request.prompt_tokens` tokens: exact with the words of a pool, about so with a calibration.

    A shared span depends on its content and the study's salt alone; what follows on the content seed. The server has
    the last word (`usage.prompt_tokens`). Seeds and salt are not negative.

    Args:
        openers: what may stand first; empty for any word.
    """
    line = calibration or Calibration()
    whole = max(1, round((request.prompt_tokens - line.overhead_tokens) / line.tokens_per_word))
    picks = list(_draw(request, whole, len(words), per_token=1 / line.tokens_per_word, study_salt=study_salt))
    chosen = [words[pick] for pick in picks]
    if openers:
        chosen[0] = openers[picks[0] % len(openers)]
    return " ".join(chosen)


def render_pooled(request: PlannedRequest, pool: WordPool, *, study_salt: int = 0) -> str:
    """Text of exactly `request.prompt_tokens` tokens, the pool's overhead included."""
    line = Calibration(overhead_tokens=pool.overhead_tokens)
    return render_prompt(request, pool.words, calibration=line, openers=pool.openers, study_salt=study_salt)


def render_ids(request: PlannedRequest, ids: IdRange, *, study_salt: int = 0) -> TokenIds:
    """Exactly `request.prompt_tokens` ids; shared spans are equal ids."""
    picks = _draw(request, request.prompt_tokens, ids.high - ids.low, per_token=1.0, study_salt=study_salt)
    return TokenIds(ids=tuple(ids.low + pick for pick in picks))


def span_seed(content: int, study_salt: int) -> list[int]:
    """Seed of a shared span: the study's for content of 0 and above, its own for what one level alone shares."""
    return [study_salt, content] if content >= 0 else [-content]


def draw(seed: list[int], size: int, count: int) -> list[int]:
    """`count` numbers below `size`."""
    picks: list[int] = np.random.default_rng(seed).integers(0, size, count).tolist()
    return picks


def _draw(request: PlannedRequest, whole: int, size: int, *, per_token: float, study_salt: int) -> Iterator[int]:
    """Numbers below `size` for every unit of a prompt of `whole` units, span by span, then the request's own.

    Args:
        per_token: units (words, ids) of one token.
    """
    left = max(1, whole) - 1  # the last unit is always the request's own
    for span in request.shared:
        here = min(left, round(span.tokens * per_token))
        if here > 0:
            yield from draw(span_seed(span.content, study_salt), size, here)
            left -= here
    yield from draw([request.content_seed], size, left + 1)
