"""Each detector fires on what it is for, names the place, and is silent on fifty healthy texts."""

import argparse
import asyncio
import codecs
import collections
import decimal
import email
import importlib
import inspect
import json
import logging
import random
import string
import subprocess
import textwrap
import unittest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kvpact.tools.text_health import (
    compare,
    examine,
    isolated_script,
    nonword_burst,
    repetition,
    single_token_loop,
    special_inside,
    stray_characters,
)

PROSE = (argparse, asyncio, codecs, collections, decimal, email, importlib, json, logging, random, string, subprocess, textwrap, unittest)


def pieces(text, size):
    """Paragraphs gathered until they are about `size` characters long."""
    gathered, out = "", []
    for paragraph in text.split("\n\n"):
        gathered += paragraph + "\n\n"
        if len(gathered) >= size:
            out.append(gathered.strip())
            gathered = ""
    return out


def healthy_texts():
    """25 pieces of English prose and 25 of code, all from Python's own library."""
    prose, code = [], []
    for module in PROSE:
        members = [module, *(member for _, member in sorted(vars(module).items(), key=lambda item: item[0]) if callable(member))]
        docs = dict.fromkeys(inspect.getdoc(member) or "" for member in members)
        prose += pieces("\n\n".join(doc for doc in docs if doc.count(" ") > 20), 700)[:3]
        code += pieces(inspect.getsource(module), 900)[1:4]
    return prose[:25] + code[:25]


HEALTHY = healthy_texts()
END = "<|end|>"


def trained():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1_500, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    tokenizer.train_from_iterator(HEALTHY, trainer)
    return tokenizer


TOKENIZER = trained()
SPECIAL = frozenset({TOKENIZER.token_to_id(END)})


def ids_of(text):
    return TOKENIZER.encode(text).ids


def found(text):
    return [finding.detector for finding in examine(ids_of(text), text, SPECIAL)]


def test_there_are_fifty_healthy_texts():
    assert len(HEALTHY) == len(set(HEALTHY)) == 50
    assert min(len(text) for text in HEALTHY) >= 500


@pytest.mark.parametrize("number", range(50))
def test_a_healthy_text_has_no_finding(number):
    text = HEALTHY[number]
    assert examine([*ids_of(text), *SPECIAL], text, SPECIAL) == ()


@pytest.mark.parametrize("number", range(0, 50, 5))
def test_every_fault_is_found_in_an_otherwise_healthy_text(number):
    text = HEALTHY[number]
    half = len(text) // 2
    assert "repetition" in found(text + " and then it went home again" * 4)
    assert "repetition" in found(text[:half] + text[half : half + 60] * 12)
    assert "single-token-loop" in found(text[:half] + " the" * 12 + text[half:])
    for stray in ("\ufffd", "\x00", "\x1b[0m", "\ue000", "的", " привет ", "سلام"):
        assert "stray-token" in found(text[:half] + stray + text[half:])
    assert "stray-token" in found(text[:half] + " xqzvk kjhgf bcdfg zxcvb qwrtp mnbvc " + text[half:])
    assert "stray-token" in found(text[:half] + END + text[half:])


# Places and figures


def test_a_run_of_one_token_is_found_with_its_place():
    assert single_token_loop([1, 2, *[7] * 9, 3]) is None
    finding = single_token_loop([1, 2, *[7] * 10, 3, 3])
    assert (finding.start, finding.end, finding.unit) == (2, 12, "token")
    assert finding.figures == {"token_id": 7, "times": 10}


def test_a_loop_at_the_end_is_found_with_its_unit_even_when_cut_short():
    head = list(range(100, 140))
    finding = repetition([*head, *[1, 2, 3, 4, 5] * 4, 1, 2])
    assert (finding.start, finding.end) == (40, 62)
    assert finding.figures == {"unit_tokens": 5, "repeats": 4.4, "tokens": 22}


def test_two_times_is_no_loop_and_a_short_one_is_none():
    head = list(range(100, 140))
    assert repetition([*head, *range(20), *range(20)]) is None
    assert repetition([*head, *[1, 2, 3] * 5]) is None
    assert repetition([*head, *range(20), *range(20), *range(20)]) is not None


@given(st.lists(st.integers(0, 2), max_size=40))
def test_the_loop_at_the_end_is_the_longest_that_there_is(ids):
    """The rule read from its words, over every unit and every length."""
    loops = [
        length
        for unit in range(1, len(ids))
        for length in range(max(3 * unit, 16), len(ids) + 1)
        if all(ids[-i] == ids[-i - unit] for i in range(1, length - unit + 1))
    ]
    finding = repetition(ids)
    ends = finding is not None and "unit_tokens" in finding.figures
    assert (finding.figures["tokens"] if ends else 0) == max(loops, default=0)


def test_a_second_half_that_says_itself_again_is_found_without_a_loop():
    order = random.Random(0)
    phrases = [list(range(20 * i, 20 * i + 12)) for i in range(3)]
    second = [token for _ in range(20) for token in order.choice(phrases)]
    finding = repetition([*range(1_000, 1_000 + len(second)), *second, 99])
    assert finding.figures["repeated_share"] > 0.6
    assert finding.start == len(second)


def test_special_tokens_may_end_an_answer_but_not_stand_in_it():
    assert special_inside([1, 2, 3], SPECIAL) is None
    end = next(iter(SPECIAL))
    assert examine([500, 501, end, end], "fine", SPECIAL) == ()
    finding = special_inside([500, end, 501], SPECIAL)
    assert (finding.start, finding.end) == (1, 2)


def test_characters_that_are_no_text_are_found_with_their_place():
    assert stray_characters("tab\t and lines\r\n, emoji 👩\u200d👧, joiners नमस्\u200dते") is None
    finding = stray_characters("a\ufffdb\x07c")
    assert (finding.start, finding.end) == (1, 4)
    assert finding.figures == {"characters": 2, "replacements": 1}


@pytest.mark.parametrize(
    "text",
    ["Die Größe heißt π·r², Ω und µm.", "日本語のテキストとカタカナ、漢字です。", "缓存 KV cache 是关于上下文的契约", "Привет, мир", ""],
)
def test_a_text_in_its_own_script_has_no_stray_letters(text):
    assert isolated_script(text) is None


def test_letters_of_another_script_are_found_with_their_place():
    finding = isolated_script("The capital of France is Пaris, as everybody knows.")
    assert (finding.start, finding.end) == (25, 26)


@pytest.mark.parametrize(
    "text", ["strengths and rhythms, HTTPS TCP/IP LMNPQRST", "x = f(a[i], b)[0]; y = {k: v}", "shh psst, hmm, nth", ""]
)
def test_odd_but_sane_words_are_no_burst(text):
    assert nonword_burst(text) is None


def test_a_burst_of_nonwords_is_found_with_its_place():
    finding = nonword_burst("a sane beginning " + "bcdfg }{)(/$# hjklm %$#@&! qwrtp " + "and a sane end of it all")
    assert finding.figures == {"nonwords": 5}
    assert (finding.start, finding.end) == (17, 49)


# Comparison


def test_equal_texts_do_not_diverge():
    result = compare("same", "same")
    assert (result.first_divergence, result.second_half_equal) == (None, 1.0)


def test_a_late_difference_and_a_drift_are_told_apart():
    text = HEALTHY[0]
    last = compare(text, text[:-1] + "\0")
    assert last.first_divergence == len(text) - 1
    assert last.second_half_equal > 0.99
    drift = compare(text, text[: len(text) // 2] + HEALTHY[30])
    assert drift.first_divergence >= len(text) // 2
    assert drift.second_half_equal < 0.3


@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_comparison_is_symmetric_and_knows_a_missing_end(a, b):
    assert compare(a, b) == compare(b, a)
    assert (compare(a, b).first_divergence is None) == (a == b)
    if b:
        assert compare(a, a + b).first_divergence == len(a)
