"""`generate(token_ids, max_new_tokens)`: whole prompts in, tokens out, with logits or log-probabilities where the callable shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvpact.doctor.adapters.callable_claims import GENERATE_FORM, TOGETHER
from kvpact.doctor.adapters.callable_step import LONGEST, as_array
from kvpact.doctor.adapters.declared import Declarations
from kvpact.doctor.adapters.resent import ResentSession, Shown
from kvpact.doctor.errors import Malformed, TargetUnusable
from kvpact.doctor.target import Answer, Capability, Row, Session, Setting, Target
from kvpact.errors import KvpactError

_TOGETHER = frozenset({Capability.BATCH, Capability.RAGGED})


class CallableGenerate(Target):
    """Greedy, by the protocol. A context is fed by sending it whole and asking for one more token, so nothing that the callable caches
    is met there: `generate` itself, over several tokens, is what rules look at."""

    level = 0

    def __init__(self, generate: Callable[..., Any], declared: Declarations, *, name: str, vocab: int | None = None) -> None:
        self._generate = generate
        self.name = name
        self.max_len = declared.number("max_len") or LONGEST
        self.block_size, self.window, self.eos = (declared.number(each) for each in ("block_size", "window", "eos"))
        said = vocab or declared.number("vocab_size")
        self._told = declared.told()
        self.claims = dict.fromkeys(_TOGETHER, TOGETHER)
        self.untrue: dict[Capability, str] = {}
        self.scores = "none"
        self.vocab_size = said or 0
        self.vocab_size = self._probed(said)
        found = {Capability.GENERATE, Capability.RESENT} | self._tried_together()
        self.capabilities = frozenset(found | ({Capability.FULL_ROWS} if self.scores == "of every token" else set()))

    def open(self, setting: Setting) -> Session:
        return ResentSession(self._send)

    def describe(self) -> Mapping[str, str]:
        return {"engine": f"callable {self.name}", "vocabulary": str(self.vocab_size), "scores": self.scores, **self._told}

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Answer]:
        given = self._generate([list(prompt) for prompt in prompts], new_tokens)
        if isinstance(given, (str, bytes)) or not hasattr(given, "__len__") or len(given) != len(prompts):
            count = f"{len(prompts)} prompt{'s' if len(prompts) > 1 else ''}"
            raise Malformed(f"{self.name} was given {count} and gave {_said(given)}", hint=GENERATE_FORM)
        return [self._answer(item, new_tokens) for item in given]

    def _send(self, whole: Mapping[str, tuple[int, ...]], new: Mapping[str, int]) -> Mapping[str, Shown]:
        answers = self.generate(list(whole.values()), 1, Setting())
        return {name: Shown(rows=list(answer.rows[:1]), cached=None) for name, answer in zip(whole, answers, strict=True)}

    def _answer(self, item: Any, new_tokens: int) -> Answer:
        paired = isinstance(item, tuple) and len(item) == 2 and hasattr(item[0], "__len__")
        tokens = self._tokens(item[0] if paired else item)
        ended = self.eos is not None and tokens[-1:] == (self.eos,)
        if len(tokens) > new_tokens or (len(tokens) < new_tokens and not ended):
            raise Malformed(
                f"{self.name} gave {len(tokens)} tokens for max_new_tokens={new_tokens}",
                hint="it must go on to the limit; say `eos` if a token ends it, and leave the prompt out",
            )
        return Answer(tokens=tokens, rows=self._rows(tokens, as_array(item[1]) if paired else None))

    def _tokens(self, given: Any) -> tuple[int, ...]:
        try:
            tokens = tuple(int(token) for token in given)
        except (TypeError, ValueError) as error:
            raise Malformed(f"{self.name} gave {_said(given)} for an answer's tokens: {error}", hint=GENERATE_FORM) from error
        if wrong := [token for token in tokens if token < 0 or 0 < self.vocab_size <= token]:
            raise Malformed(
                f"{self.name} gave token {wrong[0]}, and the vocabulary has {self.vocab_size}", hint="correct vocab_size, or the token"
            )
        return tokens

    def _rows(self, tokens: Sequence[int], scores: Any) -> tuple[Row, ...]:
        if scores is None:
            return tuple(np.full(self.vocab_size, np.nan) for _ in tokens)
        whole = scores.ndim == 2 and len(scores) == len(tokens)
        if whole and self.vocab_size and scores.shape[1] != self.vocab_size and self.scores != "none":
            raise Malformed(f"{self.name} gave {scores.shape[1]} scores, and the vocabulary has {self.vocab_size}", hint=GENERATE_FORM)
        if whole:
            self.scores = "of every token"
            return tuple(scores)
        if scores.ndim != 1 or len(scores) != len(tokens):
            raise Malformed(f"{self.name} gave {len(tokens)} tokens and scores of shape {list(scores.shape)}", hint=GENERATE_FORM)
        self.scores = "of its own tokens"
        rows = np.full((len(tokens), self.vocab_size), np.nan)
        for row, token, score in zip(rows, tokens, scores, strict=True):
            if token < self.vocab_size:  # while the vocabulary is still looked for, there is no room
                row[token] = score
        return tuple(rows)

    def _probed(self, said: int | None) -> int:
        try:
            (answer,) = self.generate([[0, 1, 2]], 2, Setting())
        except KvpactError as error:
            raise TargetUnusable(error.message, hint=error.hint) from error
        except Exception as error:  # whatever a user's function raises
            raise TargetUnusable(
                f"{self.name} failed on three tokens: {type(error).__name__}: {error}", hint="it is called as generate([[0, 1, 2]], 2)"
            ) from error
        seen = answer.rows[0].size if self.scores == "of every token" else None
        if seen is None and said is None:
            raise TargetUnusable(
                f"{self.name} does not show scores of the whole vocabulary, and says nothing of its size",
                hint="give --vocab, or an attribute vocab_size",
            )
        if seen is not None and said is not None and seen != said:
            raise TargetUnusable(f"{self.name} gives {seen} scores, and vocab_size is {said}", hint="correct the number, or leave it out")
        return int(seen or said or 0)

    def _tried_together(self) -> frozenset[Capability]:
        try:
            self.generate([[0, 1, 2], [3]], 2, Setting())
        except Malformed as error:
            self.untrue = dict.fromkeys(_TOGETHER, error.message)
            why = error.message
        except Exception as error:  # it can't do that: no fault, but it is told
            why = f"{type(error).__name__}: {error}"
        else:
            return _TOGETHER
        self._told["no batch"] = f"several prompts: {why}"
        return frozenset()


def _said(given: Any) -> str:
    return f"{type(given).__name__} of {len(given)}" if hasattr(given, "__len__") else type(given).__name__
