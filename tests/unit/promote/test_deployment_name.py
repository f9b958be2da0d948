from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from autotune.errors import ExitCode, InvalidOption
from autotune.promote.deployment_name import check_deployment_name, check_unlike_others
from autotune.promote.quoting import slug
from autotune.recipe import NAME_PATTERN
from autotune.web.wanted import Name

SERVICE = TypeAdapter(Name)
REFUSED = (
    *("", " ", ".", "..", "../x", "a/b", "a\\b", "/abs", "~", "-rf", "--name", "_a", ".git", "a b", "a\tb", "a\nb"),
    *("a\n", "a\0b", "\x1b[31mred", "a\x7f", "a@2", "a:b", "a;b", "$(x)", "a'b", "naïve", "аdmin", "ａ", "a\u200bb"),
    *("a\u202eb", "٣", "²", "\udcff", "a" * 65, "💥"),
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_name_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        check_deployment_name(name)
    assert raised.value.exit_code == ExitCode.INVALID_OPTION
    assert (raised.value.option, raised.value.value) == ("--name", name)
    assert "1-64 letters, digits" in raised.value.message
    assert raised.value.message.isprintable()


@pytest.mark.parametrize("name", ["a", "9", "prod-chat", "Llama-3.1_8B", "a" * 64, "a-", "a."])
def test_names_as_studies_have_them_are_taken(name: str) -> None:
    check_deployment_name(name)
    assert NAME_PATTERN.fullmatch(name)  # a study's name is the default


@given(st.text(max_size=70))
@example("a\n")
@example("a" * 64)
def test_command_line_service_and_studies_agree(name: str) -> None:
    def taken(check: Callable[[], object]) -> bool:
        try:
            check()
        except (InvalidOption, ValidationError):
            return False
        return True

    mine = taken(lambda: check_deployment_name(name))
    assert mine == taken(lambda: SERVICE.validate_python(name)) == bool(NAME_PATTERN.fullmatch(name))


@pytest.mark.parametrize(
    ("name", "other"), [("Prod.Chat", "prod-chat"), ("prod_chat", "prod-chat"), ("prod--chat", "prod-chat")]
)
def test_a_name_is_not_written_like_anothers(name: str, other: str) -> None:
    with pytest.raises(InvalidOption, match=f"unlike '{other}'.*'prod-chat'"):
        check_unlike_others(name, ["x", other])
    check_unlike_others(name, [name, "prod-chats"])


@pytest.mark.parametrize("limit", [18, 32, 50])
def test_long_names_do_not_become_one_by_being_cut(limit: int) -> None:
    names = [f"llama-3.1-8b-instruct-{'x' * 30}-{kind}" for kind in ("chat", "code", "rag")]
    cut = [slug(name, limit=limit) for name in names]
    assert len(set(cut)) == len(names)
    assert all(len(text) <= limit and text.startswith("llama-3-1-") for text in cut)
    assert slug("a" * limit, limit=limit) == "a" * limit
