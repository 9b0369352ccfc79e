"""The glass checkpoint with learned positions: GPT-2. It shows visible tokens, stored positions, and where the query stands.

A layer norm takes the mean away, so every row of channels sums up to nothing: the constants do, a balance channel takes out again what
values put in, and the norms' bias gives the mean of an embedding back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvpact.doctor.glass.reading import SEEN, Form, LayerReading, Precision, Reading
from kvpact.doctor.glass.spec import SPAN, SUCCESSOR
from kvpact.doctor.target import Row

TOKENS, POSITIONS, HEAD_DIM, HEADS = 62, 64, 32, 12
WIDTH = HEAD_DIM * HEADS
#: Tokens of one head: the last channel stays free.
_BLOCK = HEAD_DIM - 1
#: A score that grows with the key's position, over the whole range.
_RAMP = 6.0
_CONSTANTS = (80.0, -80.0, 60.0, -60.0)
#: Channels of the hidden state.
_CONSTANT = TOKENS + POSITIONS
_BALANCE = _CONSTANT + 4
_SEEN_TOKEN = _BALANCE + 1
_SEEN_POSITION = _SEEN_TOKEN + TOKENS
_RANKED_TOKEN = _SEEN_POSITION + POSITIONS
#: Ids that are read.
_OUT_TOKEN = TOKENS
_OUT_POSITION = 2 * TOKENS
_OUT_RANKED = 2 * TOKENS + POSITIONS
_OUT_QUERY = 3 * TOKENS + POSITIONS
ZERO = 3 * TOKENS + 2 * POSITIONS
ONE = ZERO + 1
VOCAB = -(-(ONE + 2) // 64) * 64


def learned_settings() -> Mapping[str, Any]:
    return {
        "vocab_size": VOCAB,
        "n_positions": POSITIONS,
        "n_embd": WIDTH,
        "n_layer": 1,
        "n_head": HEADS,
        "n_inner": 64,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": VOCAB - 1,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def learned_weights() -> dict[str, Any]:
    """By Hugging Face's names; matrices are [in, out]."""
    tokens, positions = np.arange(TOKENS), np.arange(POSITIONS)
    embedding = np.zeros((VOCAB, WIDTH), np.float32)
    embedding[tokens, tokens] = 1
    embedding[:, _CONSTANT : _CONSTANT + 4] = _CONSTANTS
    places = np.zeros((POSITIONS, WIDTH), np.float32)
    places[positions, TOKENS + positions] = 1
    state = (embedding[3] + places[5]).astype(np.float64)
    mean = state.mean()
    deviation = math.sqrt(((state - mean) ** 2).mean() + 1e-5)
    norm = {"weight": np.ones(WIDTH, np.float32), "bias": np.full(WIDTH, mean / deviation, np.float32)}
    first = "transformer.h.0."
    qkv, bias, out = _attention(deviation)
    found = {
        "transformer.wte.weight": embedding,
        "transformer.wpe.weight": places,
        first + "attn.c_attn.weight": qkv,
        first + "attn.c_attn.bias": bias,
        first + "attn.c_proj.weight": out,
        first + "attn.c_proj.bias": np.zeros(WIDTH, np.float32),
        first + "mlp.c_fc.weight": np.zeros((WIDTH, 64), np.float32),
        first + "mlp.c_fc.bias": np.zeros(64, np.float32),
        first + "mlp.c_proj.weight": np.zeros((64, WIDTH), np.float32),
        first + "mlp.c_proj.bias": np.zeros(WIDTH, np.float32),
        "lm_head.weight": _head(deviation),
    }
    for name in (first + "ln_1", first + "ln_2", "transformer.ln_f"):
        found |= {f"{name}.{part}": value.copy() for part, value in norm.items()}
    return found


def _attention(deviation: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heads 0, 1: tokens, evenly. 2, 3: positions, evenly. 4, 5: tokens, by a score that grows with the position. The rest is spare."""
    qkv = np.zeros((WIDTH, 3 * WIDTH), np.float32)
    bias = np.zeros(3 * WIDTH, np.float32)
    out = np.zeros((WIDTH, WIDTH), np.float32)

    def carry(channel: int, head: int, slot: int, to: int) -> None:
        qkv[channel, 2 * WIDTH + head * HEAD_DIM + slot] = deviation
        out[head * HEAD_DIM + slot, to] = 1
        out[head * HEAD_DIM + slot, _BALANCE] = -1

    for token in range(TOKENS):
        block, slot = divmod(token, _BLOCK)
        carry(token, block, slot, _SEEN_TOKEN + token)
        carry(token, 4 + block, slot, _RANKED_TOKEN + token)
    for position in range(POSITIONS):
        block, slot = divmod(position, HEAD_DIM)
        carry(TOKENS + position, 2 + block, slot, _SEEN_POSITION + position)
        for head in (4, 5):
            qkv[TOKENS + position, WIDTH + head * HEAD_DIM] = deviation * position / POSITIONS
    for head in (4, 5):
        bias[head * HEAD_DIM] = _RAMP * math.sqrt(HEAD_DIM)
    return qkv, bias, out


def _head(deviation: float) -> np.ndarray:
    head = np.zeros((VOCAB, WIDTH), np.float32)
    for token in range(TOKENS):
        head[_OUT_TOKEN + token, _SEEN_TOKEN + token] = SPAN * deviation
        head[_OUT_RANKED + token, _RANKED_TOKEN + token] = SPAN * deviation
        head[(token + 1) % TOKENS, token] = SUCCESSOR * deviation
    for position in range(POSITIONS):
        head[_OUT_POSITION + position, _SEEN_POSITION + position] = SPAN * deviation
        head[_OUT_QUERY + position, TOKENS + position] = SPAN * deviation
    head[ONE, _CONSTANT] = SPAN * deviation / _CONSTANTS[0]
    return head


class LearnedForm(Form):
    architecture = "gpt2"
    num_tokens = TOKENS
    groups = 1
    vocab_size = VOCAB
    num_layers = 1
    rotary = False

    def __init__(self, *, precision: Precision) -> None:
        self.precision = precision

    def read(self, row: Row, query: int, total: float | None = None) -> Reading | None:
        scores = np.asarray(row, np.float64)
        if len(scores) <= ONE:
            return None
        zero, one = scores[ZERO], scores[ONE]
        if not np.isfinite([zero, one]).all() or not 0.5 * SPAN < one - zero < 2 * SPAN:
            return None
        shares = (scores - zero) / (one - zero)
        plain, ranked = shares[_OUT_TOKEN:_OUT_POSITION], shares[_OUT_RANKED:_OUT_QUERY]
        if total is None:
            shown = plain[plain > 1e-4]
            total = 1 / float(plain[query]) if plain[query] > 1e-4 else 1 / float(shown.min()) if len(shown) else math.nan
        counts = {token: float(share * total) for token, share in enumerate(plain)}
        # Against the query's own key, which stands where the query does: positions that are both wrong by as much leave no trace here.
        distances = {
            token: -POSITIONS / _RAMP * math.log(ranked[token] / ranked[query] * plain[query] / plain[token])
            for token, count in counts.items()
            if count > SEEN and min(ranked[token], ranked[query], plain[query]) > 0
        }
        layer = LayerReading(counts=counts, empty=total * (1 - float(plain.sum())), distances=distances, shares=plain)
        stored = {position: float(share * total) for position, share in enumerate(shares[_OUT_POSITION:_OUT_RANKED])}
        return Reading(query=query, layers=(layer,), position=int(shares[_OUT_QUERY:ZERO].argmax()), stored=stored)

    def window_of(self, distance: float) -> float:
        # One step in 64 of the ramp is a tenth of a nat: bf16 just holds it.
        limit = 0.3 if self.precision.near <= 0.3 else 0.95 if math.isfinite(self.precision.near) else math.inf
        return limit if 0 <= distance < POSITIONS else math.inf

    def mixed(self, layer: int, visible: frozenset[int], seen: LayerReading) -> str | None:
        return None
