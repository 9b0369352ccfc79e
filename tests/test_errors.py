"""Every error has a code of its own, a hint, and an entry in the docs."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvpact.doctor import errors
from kvpact.errors import InvalidConfig, KvpactError

DOCS = Path(__file__).parents[1] / "docs" / "errors.md"


def all_errors(base: type[KvpactError] = KvpactError) -> list[type[KvpactError]]:
    """Every class of kvpact.errors and of the doctor's below `base`; a class that a test made does not count."""
    found = []
    for kind in base.__subclasses__():
        if kind.__module__ in ("kvpact.errors", errors.__name__):
            found += [kind, *all_errors(kind)]
    return found


def doc_entries(text: str) -> list[tuple[str, str]]:
    """(code, class) of each section."""
    return re.findall(r"^## ([a-z-]+)\n\n`(\w+)`\. ", text, flags=re.MULTILINE)


def undocumented(kinds: Iterable[type[KvpactError]], text: str) -> list[str]:
    entries = doc_entries(text)
    return [kind.__name__ for kind in kinds if entries.count((kind.code, kind.__name__)) != 1]


def test_each_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in (KvpactError, *all_errors())]
    assert len(codes) > 15
    assert len(set(codes)) == len(codes)
    assert all("code" in vars(kind) for kind in all_errors())


def test_each_error_has_exactly_one_entry_in_the_docs() -> None:
    assert undocumented(all_errors(), DOCS.read_text(encoding="utf-8")) == []


def test_the_docs_name_no_error_that_is_gone() -> None:
    known = {(kind.code, kind.__name__) for kind in all_errors()}
    assert set(doc_entries(DOCS.read_text(encoding="utf-8"))) == known


def test_an_error_without_an_entry_is_found() -> None:
    text = DOCS.read_text(encoding="utf-8").replace("## cache-full", "## cache-filled")
    assert undocumented(all_errors(), text) == ["CacheFull"]


def test_an_error_shows_message_code_and_hint_and_keeps_the_numbers() -> None:
    error = InvalidConfig("block_size is 0", hint="block_size counts from 1", block_size=0)
    assert str(error) == "block_size is 0 [invalid-config]\nhint: block_size counts from 1"
    assert error.numbers == {"block_size": 0}


def test_an_error_without_a_hint_can_t_be_made() -> None:
    with pytest.raises(TypeError):
        InvalidConfig("block_size is 0")  # type: ignore[call-arg]
