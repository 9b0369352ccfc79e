"""What a server takes and tells is found out, and what it tells arrives as rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvpact.doctor.adapters.server.target import Server, connect
from kvpact.doctor.adapters.server.words import WORDS, text_of
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.target import Capability, Setting
from served import SERVED, Asked, Manners, Sent, Served, Toy, serving

TOKENS = (20, 30, 40, 50)


def row_of(target: Server, tokens: tuple[int, ...] = TOKENS) -> np.ndarray:
    (row,) = target.open(Setting()).feed({"a": tokens})["a"]
    return row


def test_a_row_holds_the_servers_log_probabilities_in_the_places_of_their_ids() -> None:
    with serving() as served:
        row = row_of(connect(served.url))
    whole, _ = Toy().row(TOKENS, "")
    shown = ~np.isnan(row)
    assert shown.sum() == 20
    assert np.array_equal(np.flatnonzero(shown), np.sort(np.argsort(-whole)[:20]))
    assert np.array_equal(row[shown], whole[np.flatnonzero(shown)])


def test_what_is_found_out_is_what_the_server_was_made_to_do() -> None:
    with serving(top=7, max_len=300) as served:
        limits = connect(served.url).limits
    assert (limits.model, limits.ids, limits.named_by_id, limits.top, limits.max_len) == (SERVED, True, True, 7, 299)
    assert (limits.salt, limits.switch, limits.usage, limits.block_size, limits.cold) == ("honoured", False, True, 16, "cache_salt")


@pytest.mark.parametrize("block", [2, 4, 8, 16, 32, 64, 128])
def test_the_block_size_is_read_off_the_counts_of_hits(block: int) -> None:
    with serving(Toy(block_size=block)) as served:
        assert connect(served.url).block_size == (block if block > 2 else None)


def test_without_counts_there_is_no_usage_and_no_block_size() -> None:
    with serving(usage=False) as served:
        target = connect(served.url)
    assert not target.can(Capability.USAGE)
    assert target.block_size is None
    assert target.can(Capability.REUSE, Capability.SALT)


def test_a_server_that_ignores_unknown_fields_has_no_salt_and_no_way_to_be_cold() -> None:
    with serving(salt=False) as served:
        target = connect(served.url)
    assert target.limits.salt is None
    assert not target.can(Capability.SALT)
    assert not target.can(Capability.REUSE)


def test_a_salt_that_parts_nobody_is_told_from_one_that_does() -> None:
    class Deaf(Toy):
        def row(self, tokens: object, salt: str) -> tuple[np.ndarray, int]:
            return super().row(tokens, "same")  # type: ignore[arg-type]

    with serving(Deaf()) as served:
        target = connect(served.url)
    assert target.limits.salt == "ignored"
    assert target.can(Capability.SALT)
    assert not target.can(Capability.REUSE)


def test_without_reuse_nothing_is_hit_and_with_it_the_same_program_hits_itself_alone() -> None:
    tokens = tuple(range(20, 60))
    with serving() as served:
        target = connect(served.url)
        cached = []
        for reuse in (True, True, False):
            session = target.open(Setting(reuse=reuse))
            session.feed({"a": tokens})
            cached.append(session.cached_tokens("a"))
        target.begin()
        session = target.open(Setting())
        session.feed({"a": tokens})
        assert [*cached, session.cached_tokens("a")] == [0, 32, 0, 0]


def test_contexts_grow_and_go_to_the_server_whole() -> None:
    with serving() as served:
        session = connect(served.url).open(Setting())
        session.feed({"a": (20, 21), "b": (30,)})
        session.feed({"b": (31,), "a": (22,)})
        prompts = sorted(asked.body["prompt"] for asked in served.asked[-2:])
    assert prompts == [[20, 21, 22], [30, 31]]


def test_where_ids_are_refused_words_are_sent_and_texts_have_places() -> None:
    with serving(ids=False, names="text") as served:
        target = connect(served.url)
        row = row_of(target)
        assert served.asked[-1].body["prompt"] == text_of(TOKENS)
        assert target.vocab_size == len(WORDS)
        assert (~np.isnan(row)).sum() == 20
        assert np.array_equal(row, row_of(target), equal_nan=True)
        assert not np.array_equal(row, row_of(target, (*TOKENS, 60)), equal_nan=True)


def test_words_are_told_apart() -> None:
    assert len(set(WORDS)) == len(WORDS) >= 150


def test_a_server_with_the_chat_interface_alone_is_asked_by_chat() -> None:
    with serving(completions=False, chat=True) as served:
        target = connect(served.url)
        row = row_of(target)
        assert served.asked[-1].path == "/v1/chat/completions"
    assert target.limits.dialect.name == "OpenAI chat completions"
    assert (~np.isnan(row)).sum() == 20


def test_llama_cpps_own_interface_is_understood() -> None:
    """Its form, with ids and without a model's name, as a server of 2026-10 answers."""

    def native(number: int, asked: Asked) -> Sent | None:
        if asked.path != "/completion":
            return None
        scores, _ = Toy().row(asked.body["prompt"], "")
        best = [{"id": int(i), "token": f"<{i}>", "logprob": float(scores[i])} for i in np.argsort(-scores)[: asked.body["n_probs"]]]
        told = {"completion_probabilities": [{**best[0], "top_logprobs": best}], "tokens_evaluated": len(asked.body["prompt"])}
        return Sent(body=json.dumps({**told, "timings": {"cache_n": 0}}).encode())

    with serving(completions=False, mischief=native) as served:
        target = connect(served.url)
        row = row_of(target)
    assert target.limits.dialect.name == "llama.cpp completion"
    assert target.limits.top == 300
    assert row[int(np.argmax(Toy().row(TOKENS, "")[0]))] == pytest.approx(Toy().row(TOKENS, "")[0].max())


def test_llama_cpp_is_made_to_draw_a_token_that_is_no_piece_of_a_character() -> None:
    """It shows no log-probabilities behind such a piece: here, behind every id that is divisible by three."""

    def native(number: int, asked: Asked) -> Sent | None:
        if asked.path != "/completion":
            return None
        scores, _ = Toy().row(asked.body["prompt"], "")
        best = np.argsort(-scores)[: asked.body["n_probs"]]
        drawn = asked.body["logit_bias"][0][0] if "logit_bias" in asked.body else int(best[number % len(best)])
        shown = [{"id": int(token), "token": f"<{token}>", "logprob": float(scores[token])} for token in best]
        told = [{"id": drawn, "top_logprobs": shown}] if drawn % 3 else []
        return Sent(body=json.dumps({"completion_probabilities": told}).encode())

    with serving(completions=False, mischief=native) as served:
        target = connect(served.url)
        session = target.open(Setting())
        for start in range(20, 60):
            assert session.feed({f"{start}": range(start, start + 4)})


def test_a_small_vocabulary_is_shown_whole_and_yet_its_bits_are_not_relied_on() -> None:
    with serving(top=1000) as served:
        target = connect(served.url)
        row = row_of(target)
    assert len(row) == target.vocab_size == 300
    assert not np.isnan(row).any()
    assert not target.can(Capability.FULL_ROWS)


def test_a_drawn_token_that_is_not_among_the_likeliest_is_left_out() -> None:
    told = {
        "tokens": ["token_id:9"],
        "token_logprobs": [-9.0],
        "top_logprobs": [{"token_id:9": -9.0, "token_id:3": -0.1, "token_id:4": -2.5}],
    }
    from kvpact.doctor.adapters.server.dialects import Completions

    assert Completions().read({"choices": [{"logprobs": told}]}, 2).shown == {3: -0.1, 4: -2.5}


def test_pieces_that_have_the_same_text_are_left_out() -> None:
    from kvpact.doctor.adapters.server.dialects import Chat

    items = [{"token": "a", "logprob": -1.0}, {"token": "�", "logprob": -2.0}, {"token": "�", "logprob": -3.0}]
    assert Chat().read({"choices": [{"logprobs": {"content": [{"top_logprobs": items}]}}]}, 3).shown == {"a": -1.0}


@pytest.mark.parametrize("url", ["http://me:secret@127.0.0.1/v1", "http://127.0.0.1/v1?key=secret", "http:///v1", "http://127.0.0.1:x/v1"])
def test_a_url_that_holds_more_or_less_than_an_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(TargetUnusable) as refused:
        connect(url)
    assert "secret" not in str(refused.value)


def test_a_server_that_shows_no_log_probabilities_is_refused_with_the_reasons() -> None:
    def mute(number: int, asked: Asked) -> Sent | None:
        return Sent(body=b'{"choices": [{"text": "hello"}]}') if "completions" in asked.path else None

    with serving(mischief=mute) as served, pytest.raises(TargetUnusable, match="no way to ask this server for log-probabilities"):
        connect(served.url)


def test_the_tests_server_shows_at_most_what_it_is_told_to() -> None:
    """The other way round: a server without manners to find out would let every test above pass."""
    with serving(top=3) as served:
        assert isinstance(served, Served)
        assert served.usual(Asked(path="/v1/completions", body={"prompt": [1, 2], "logprobs": 4}, headers={})).status == 400
        assert served.usual(Asked(path="/v1/completions", body={"prompt": [1, 2], "logprobs": 3}, headers={})).status == 200
    assert Manners().top == 20
