"""Text from tokens, one at a time: what is handed on is final, and all of it together is what decode() of all tokens gives.

tokenizers' own DecodeStream does not serve: it raises when a run of byte tokens turns out to be invalid UTF-8, holds every
token after a lone bad byte until some later text ends well (so its cost grows), and can't hand out what is left at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from kvpact.ids import TokenId

_REPLACEMENT = "\ufffd"
# A decoder with byte fallback looks at a whole run of these at once; one bad byte turns all of the run into replacements.
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# A window is cut back to the last 4 tokens. A token has at least one byte, and after 4 bytes any start of UTF-8 is in step again:
# a lead byte takes at most 3 more. Decoders that treat a first token apart (a leading space) need one token before the new ones.
_KEPT_TOKENS = 4
_WINDOW_TOKENS = 12


class _StableText:
    """Decodes a window of the latest tokens and hands on the text that no later token can change."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        decoder = tokenizer.decoder
        self._byte_fallback = decoder is not None and b'"ByteFallback"' in decoder.__getstate__()
        self._window: list[TokenId] = []
        self._handed_on = ""  # how much of the window's text

    def push(self, token_id: TokenId) -> str:
        token = self._tokenizer.id_to_token(token_id)
        if not token or self._is_skipped(token_id):
            return ""
        self._window.append(token_id)
        if self._byte_fallback and _BYTE_TOKEN.fullmatch(token):
            return ""
        text = self._settled()
        new = text[len(self._handed_on) :]
        self._handed_on = text
        if len(self._window) > _WINDOW_TOKENS:
            del self._window[:-_KEPT_TOKENS]
            self._handed_on = self._settled()
        return new

    def finish(self) -> str:
        """What was still open, as decode() shows it when nothing follows."""
        rest = self._decode(self._window)[len(self._handed_on) :]
        self._window, self._handed_on = [], ""
        return rest

    def _settled(self) -> str:
        """The window's text without a last replacement character: at most one, for it may stand for a character's first bytes."""
        return self._decode(self._window).removesuffix(_REPLACEMENT)

    def _is_skipped(self, token_id: TokenId) -> bool:
        """Whether decode() leaves the token out. Such a token must not count as what precedes another, nor end a run of bytes."""
        return self._skip and not self._decode([token_id]) and bool(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def _decode(self, token_ids: list[TokenId]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)


@dataclass
class _StopString:
    """One stop string as an automaton (Knuth, Morris, Pratt): each character costs amortised constant time.

    matched: how many of its characters the text ends with, its longest start that does.
    """

    string: str
    fallbacks: list[int] = field(default_factory=list)
    matched: int = 0

    def __post_init__(self) -> None:
        self.fallbacks = [0]
        length = 0
        for character in self.string[1:]:
            length = self._next(length, character)
            self.fallbacks.append(length)

    def push(self, character: str) -> bool:
        """Whether the string ends at this character."""
        self.matched = self._next(self.matched, character)
        return self.matched == len(self.string)

    @property
    def begun(self) -> int:
        """How many characters at the text's end may still become this string. A whole match that was passed over counts as its end."""
        return self.fallbacks[-1] if self.matched == len(self.string) else self.matched

    def _next(self, length: int, character: str) -> int:
        while length and (length == len(self.string) or self.string[length] != character):
            length = self.fallbacks[length - 1]
        return length + (self.string[length] == character)


class IncrementalDetokenizer:
    """Turns one sequence's output tokens into text that is final as soon as it is handed on.

    Held back: a character whose bytes are not all there; with a byte-fallback decoder, a run of byte tokens, because decode()
    judges a run as a whole; text that a stop string may start with. Each push costs amortised constant time.

    A stop string counts where its last character comes from a token after the first `min_tokens`, as in vLLM; it may begin before.
    The match that ends first wins, of those the longest, so how text is cut into tokens can't change the result.
    """

    def __init__(
        self,
        tokenizer_backend: Tokenizer,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._stable = _StableText(tokenizer_backend, skip_special_tokens)
        self._stops = [_StopString(string) for string in sorted(stop, key=len, reverse=True)]
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._held = ""
        self._parts: list[str] = []
        self.stopped: str | None = None  # the stop string that ended the text

    @property
    def text(self) -> str:
        """All that was handed on."""
        self._parts = ["".join(self._parts)]
        return self._parts[0]

    def push(self, token_id: TokenId) -> str:
        """The text that became final with this token; nothing after a stop string."""
        if self.stopped is not None:
            return ""
        self._num_tokens += 1
        return self._hand_on(self._match(self._stable.push(token_id)))

    def finish(self) -> str:
        """The rest, when no token follows. Nothing may be pushed afterwards."""
        if self.stopped is not None:
            return ""
        text = self._match(self._stable.finish())
        if self.stopped is None:
            text, self._held = text + self._held, ""
        return self._hand_on(text)

    def _hand_on(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text

    def _match(self, new: str) -> str:
        """Follow the stop strings through new text; returns what is final and holds back the rest."""
        if not self._stops:
            return new
        heeded = self._num_tokens > self._min_tokens
        text = self._held + new
        for end, character in enumerate(new, start=len(self._held) + 1):
            ended = [stop for stop in self._stops if stop.push(character)]
            if ended and heeded:
                self.stopped, self._held = ended[0].string, ""
                return text[: end if self._include_stop else end - len(self.stopped)]
        keep = max(stop.begun for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]
