"""What people and programs get to read."""

import json

import pytest

from kvpact.cli.render import brief, print_json, print_trace, show_bytes, show_seconds, show_share
from kvpact.engine.trace import CacheTrace


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (755 << 20, "755.0 MiB"), (3 << 29, "1.5 GiB")]
)
def test_bytes_are_shown_in_the_unit_that_fits(count: int, text: str) -> None:
    assert show_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0.0123, "12 ms"), (0.9994, "999 ms"), (1.0, "1.00 s"), (61.5, "61.50 s")])
def test_seconds_are_shown_to_three_digits_or_so(seconds: float | None, text: str) -> None:
    assert show_seconds(seconds) == text


def test_a_share_is_shown_as_a_percentage() -> None:
    assert show_share(0.0163) == "1.6 %"


def test_a_long_text_in_brief_keeps_its_beginning_and_its_end() -> None:
    assert brief("two\n words", 20) == "two words"
    text = brief("In summer a hive holds many bees. " * 30 + "How long does a bee live?", 44)
    assert len(text) <= 44
    assert text.startswith("In summer a hive")
    assert text.endswith("does a bee live?")


def test_a_document_names_its_kind_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("env", {"python": "3.11", "text": "é"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"schema_version": 1, "kind": "env", "python": "3.11", "text": "é"}
    assert "é" in printed


def test_a_trace_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    place = {"block_ids": (4, 9), "shape": (8, 16, 2, 8), "data_ptr": 0x1000}
    print_trace(CacheTrace(step=3, request_id="0", choice=1, group="full", start=16, stop=20, seq_len=20, **place))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "step 3 request 0.1 group full computes [16, 20) reads 20 keys [8, 16, 2, 8] at 0x1000 blocks 4 9\n"
