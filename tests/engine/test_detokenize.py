"""What is handed on is final, and all of it together is what decode() of all tokens gives."""

from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.decoders import DecodeStream

from kvpact.engine.detokenize import IncrementalDetokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 3,
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))  # 3\n",
    "缓存是关于上下文的契约。相同的提示给出相同的结果。",
    "Café naïve e\u0301le\u0300ve 👩\u200d👩\u200d👧 🇫🇷 😀😀 ｆｕｌｌ नमस्ते",
]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken("naïf", normalized=False)])
    return tokenizer


def byte_fallback(decoder):
    """As SentencePiece models are converted: spaces are ▁, characters outside the vocabulary are byte tokens."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, limit_alphabet=40, special_tokens=special, show_progress=False)
    trained.train_from_iterator(TEXTS, trainer)
    vocab = trained.get_vocab()
    pieces = [token for token in vocab if len(token) > 1 and token not in special]
    merges = [(p[:i], p[i:]) for p in sorted(pieces, key=vocab.__getitem__) for i in range(1, len(p)) if p[:i] in vocab and p[i:] in vocab]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def llama_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def metaspace_decoder():
    return decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])


TOKENIZERS = {"byte_level": byte_level(), "llama": byte_fallback(llama_decoder()), "metaspace": byte_fallback(metaspace_decoder())}
BYTE_CHARACTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
KINDS = pytest.mark.parametrize("kind", list(TOKENIZERS))


def pushes(tokenizer, ids, **options):
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    parts = [detokenizer.push(token) for token in ids]
    parts.append(detokenizer.finish())
    assert detokenizer.text == "".join(parts)
    return parts, detokenizer.stopped


def byte_ids(kind, data):
    """One token for each byte."""
    tokenizer = TOKENIZERS[kind]
    if kind == "byte_level":
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [byte for byte in range(256) if byte not in printable]
        names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
        return [tokenizer.token_to_id(names[byte]) for byte in data]
    return [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]


def sequences(kind):
    """Any tokens at all, unknown ids and special ones among them, and runs of raw bytes, most of them not UTF-8."""
    tokenizer = TOKENIZERS[kind]
    some = st.lists(st.integers(0, tokenizer.get_vocab_size() + 2), max_size=8)
    raw = st.lists(st.sampled_from(list(b"a\x80\x9f\xbf\xc3\xa9\xe4\xb8\xad\xf0\x98\xed\xff")), max_size=6).map(lambda b: byte_ids(kind, b))
    proper = st.text(max_size=4).map(lambda text: byte_ids(kind, text.encode()))
    named = [tokenizer.token_to_id(token) for token in ("<|end|>", "naïf", "<s>", "</s>", "▁")]
    marks = st.sampled_from([token for token in named if token is not None]).map(lambda token: [token])
    parts = st.lists(st.one_of(some, raw, proper, marks), max_size=12)
    return parts.map(lambda drawn: list(chain.from_iterable(drawn)))


@KINDS
@pytest.mark.parametrize("skip", [True, False])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pushes_and_finish_together_are_what_decode_gives(kind, skip, data):
    ids = data.draw(sequences(kind))
    parts, stopped = pushes(TOKENIZERS[kind], ids, skip_special_tokens=skip)
    assert "".join(parts) == TOKENIZERS[kind].decode(ids, skip_special_tokens=skip)
    assert stopped is None


@KINDS
@settings(max_examples=100, deadline=None)
@given(text=st.one_of(st.text(max_size=60), st.lists(st.sampled_from(TEXTS), max_size=2).map("".join)))
@example(text=" leading and trailing ")
@example(text="e\u0301 👩\u200d👩\u200d👧 契约")
def test_a_character_split_over_tokens_is_never_shown_in_part(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).ids
    parts, _ = pushes(tokenizer, ids)
    whole = tokenizer.decode(ids)
    assert "".join(parts) == whole
    assert "".join(parts).count("\ufffd") == whole.count("\ufffd")


def test_text_is_handed_on_as_soon_as_it_is_whole():
    ids = byte_ids("byte_level", "a😀b".encode())
    assert pushes(TOKENIZERS["byte_level"], ids)[0] == ["a", "", "", "", "😀", "b", ""]


def test_a_lone_bad_byte_holds_nothing_up():
    ids = byte_ids("byte_level", b"a\x80\x80b\xe4\xb8")
    assert pushes(TOKENIZERS["byte_level"], ids)[0] == ["a", "", "\ufffd", "\ufffdb", "", "", "\ufffd"]


def test_a_run_of_byte_tokens_waits_for_its_end_because_decode_judges_it_whole():
    tokenizer = TOKENIZERS["llama"]
    end = tokenizer.token_to_id("</s>")
    word = tokenizer.encode("fox").ids[-1]
    good = [*byte_ids("llama", "é".encode()), end, word]
    bad = [*byte_ids("llama", "é".encode()), end, *byte_ids("llama", b"\xf0"), word]
    assert pushes(tokenizer, good)[0][:3] == ["", "", ""]
    assert "".join(pushes(tokenizer, good)[0]).startswith("é")
    assert "".join(pushes(tokenizer, bad)[0]).startswith("\ufffd\ufffd\ufffd")


def test_why_the_library_stream_does_not_serve():
    """Once this fails, DecodeStream can take the window's place."""
    tokenizer = TOKENIZERS["llama"]
    word = tokenizer.encode("fox").ids[-1]
    stream = DecodeStream(skip_special_tokens=True)
    with pytest.raises(Exception, match="Invalid prefix"):
        [stream.step(tokenizer, token) for token in [*byte_ids("llama", "é".encode()), *byte_ids("llama", b"\xf0"), word]]


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.decoder, self.decoded = tokenizer, tokenizer.decoder, 0

    def id_to_token(self, token_id):
        return self.tokenizer.id_to_token(token_id)

    def decode(self, token_ids, skip_special_tokens):
        self.decoded += len(token_ids)
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


@KINDS
def test_a_push_decodes_as_little_at_the_end_of_a_long_text_as_at_its_beginning(kind):
    """Good text, then bad bytes without end: neither makes the window grow."""
    counting = Counting(TOKENIZERS[kind])
    word = counting.tokenizer.encode(TEXTS[0]).ids
    ids = word + byte_ids(kind, b"\x80" * 50) + word[:1]
    detokenizer = IncrementalDetokenizer(counting, stop=["never seen", "dog does not bark"])

    def decoded():
        before = counting.decoded
        for token in ids:
            detokenizer.push(token)
        return counting.decoded - before

    decoded()
    early = decoded()
    assert early < 12 * len(ids)
    assert max(decoded() for _ in range(40)) < 1.1 * early  # where a window is cut moves a little


# Stop strings


def stopped_at(text, stops, include=False):
    """The rule, read from its words: the match that ends first, of those the longest."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("ab ", max_size=30),
    stops=st.lists(st.text("ab ", min_size=1, max_size=5), max_size=3),
    include=st.booleans(),
)
@example(text="abcd", stops=["abcd", "bc"], include=False)
@example(text="aab", stops=["ab", "aab"], include=False)
def test_text_is_cut_at_the_stop_string_that_ends_first(text, stops, include):
    tokenizer = TOKENIZERS["byte_level"]
    whole, by_bytes = tokenizer.encode(text).ids, byte_ids("byte_level", text.encode())
    for ids in (whole, by_bytes):
        parts, stopped = pushes(tokenizer, ids, stop=stops, include_stop=include)
        assert ("".join(parts), stopped) == stopped_at(text, stops, include)


def test_nothing_of_a_stop_string_is_ever_handed_on():
    ids = byte_ids("byte_level", b"one STOP two")
    parts, stopped = pushes(TOKENIZERS["byte_level"], ids, stop=["STOP"])
    assert parts == ["o", "n", "e", " ", *[""] * 9]
    assert stopped == "STOP"


def test_text_that_only_began_like_a_stop_string_is_handed_on():
    ids = byte_ids("byte_level", b"STOSTEP ST")
    parts, stopped = pushes(TOKENIZERS["byte_level"], ids, stop=["STOP"])
    assert parts == ["", "", "", "STO", "", "STE", "P", " ", "", "", "ST"]
    assert stopped is None


def test_a_stop_string_over_several_characters_and_tokens_is_found():
    text = "good 😀é stop"
    for kind in ("byte_level", "llama"):
        parts, stopped = pushes(TOKENIZERS[kind], byte_ids(kind, text.encode()), stop=["😀é"])
        assert ("".join(parts), stopped) == ("good ", "😀é")


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, "a"), (2, "a"), (3, "abca"), (5, "abca"), (6, "abcabc"), (9, "abcabc")])
def test_a_stop_string_that_ends_within_min_tokens_is_text(min_tokens, expected):
    parts, _ = pushes(TOKENIZERS["byte_level"], byte_ids("byte_level", b"abcabc"), stop=["bc"], min_tokens=min_tokens)
    assert "".join(parts) == expected


def test_a_passed_over_stop_string_can_begin_the_next():
    parts, stopped = pushes(TOKENIZERS["byte_level"], byte_ids("byte_level", b"xabab"), stop=["bab", "ab"], min_tokens=3)
    assert ("".join(parts), stopped) == ("xa", "bab")


def test_a_passed_over_stop_string_is_handed_on_at_once():
    parts, _ = pushes(TOKENIZERS["byte_level"], byte_ids("byte_level", b"abc"), stop=["b"], min_tokens=9)
    assert parts == ["a", "b", "c", ""]


def test_after_a_stop_nothing_more_comes():
    detokenizer = IncrementalDetokenizer(TOKENIZERS["byte_level"], stop=["b"])
    ids = byte_ids("byte_level", b"abc")
    assert [detokenizer.push(token) for token in ids] == ["a", "", ""]
    assert detokenizer.finish() == ""
    assert detokenizer.text == "a"


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_shown_only_when_asked_for(skip):
    tokenizer = TOKENIZERS["byte_level"]
    ids = [*byte_ids("byte_level", b"a"), tokenizer.token_to_id("<|end|>"), *byte_ids("byte_level", b"b")]
    assert "".join(pushes(tokenizer, ids, skip_special_tokens=skip)[0]) == ("ab" if skip else "a<|end|>b")
