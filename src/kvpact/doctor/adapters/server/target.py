"""An OpenAI-compatible server as a target: token ids or text go there, log-probabilities of the next token come back."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from kvpact.doctor.adapters.resent import ResentSession, Shown
from kvpact.doctor.adapters.server.answers import answer, offered
from kvpact.doctor.adapters.server.client import Client
from kvpact.doctor.adapters.server.dialects import Answer, Ask, Name
from kvpact.doctor.adapters.server.limits import Limits, ask, find_out
from kvpact.doctor.errors import TargetFailed
from kvpact.doctor.glass.forms import RECOGNITION, recognise
from kvpact.doctor.glass.reading import Form
from kvpact.doctor.target import Answer as Given
from kvpact.doctor.target import Capability, Row, Session, Setting, Target

#: Requests that are under way at once at most.
_AT_ONCE = 16
#: Places in a row for tokens that are named by their text.
_TEXTS = 4096


class Server(Target):
    """Capabilities follow from what the server was found to do; text names of tokens get places above the ids, in order of appearance."""

    level = 0

    def __init__(self, client: Client, limits: Limits, *, name: str) -> None:
        self.name = name
        self.limits = limits
        self._client = client
        self.nonce = secrets.token_hex(8)
        self._program = 0
        self._places: dict[str, int] = {}
        self.vocab_size = limits.vocab_size
        self.max_len = limits.max_len
        self.whole_tokens = limits.ids
        self.block_size = limits.block_size
        self.capabilities = _capabilities(limits)
        if offered(client, limits, self._row):
            self.capabilities |= {Capability.GENERATE}
        self.form = self._glass_form()
        if self.form is not None:
            self.window = self.form.window
            self.capabilities |= {Capability.GLASS}

    def _glass_form(self) -> Form | None:
        """Where the glass checkpoint is what is served, its own rows say so. An id that does not exist is refused, as is all else."""
        if not (self.limits.ids and self.limits.named_by_id):
            return None
        rows: list[tuple[Sequence[int], Mapping[int, float]]] = []
        with suppress(TargetFailed):
            for context in RECOGNITION:
                shown = ask(self._client, self.limits, context, self._wanted(Setting(reuse=False))).shown
                rows.append((context, {name: score for name, score in shown.items() if isinstance(name, int)}))
        return recognise(rows) if len(rows) == len(RECOGNITION) else None

    def glass(self) -> Target:
        """What is served is the glass checkpoint itself."""
        return self

    def describe(self) -> Mapping[str, str]:
        limits = self.limits
        return {
            "server": limits.server,
            "model": limits.model or "not named",
            "interface": limits.dialect.name,
            "prompts": f"token ids below {limits.vocab_size}" if limits.ids else f"text of {limits.vocab_size} words",
            "log-probabilities": f"the likeliest {limits.top}, by {'id' if limits.named_by_id else 'text'}",
            "longest context": str(limits.max_len),
            "hits": _hits(limits),
        }

    def begin(self) -> None:
        self._program += 1

    def open(self, setting: Setting) -> Session:
        def send(contexts: Mapping[str, tuple[int, ...]], new: Mapping[str, int]) -> Mapping[str, Shown]:
            with ThreadPoolExecutor(min(len(contexts), _AT_ONCE)) as pool:
                answers = pool.map(lambda tokens: ask(self._client, self.limits, tokens, self._wanted(setting)), contexts.values())
                return {name: self._shown(len(contexts[name]), answer) for name, answer in zip(contexts, answers, strict=True)}

        return ResentSession(send)

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Given]:
        wanted = self._wanted(setting)
        with ThreadPoolExecutor(min(len(prompts), _AT_ONCE)) as pool:
            return list(pool.map(lambda each: answer(self._client, self.limits, tuple(each), new_tokens, wanted, self._row), prompts))

    def _wanted(self, setting: Setting) -> Ask:
        """What is not to be reused has a salt that nobody has; the others of one program have that program's, so that nothing is
        hit which an earlier one, perhaps of an earlier examination, has left."""
        salt = None
        if self.limits.salt is not None:
            shared = f"{self.nonce}-{self._program}-{setting.salt or ''}"
            salt = shared if setting.reuse else secrets.token_hex(16)
        return Ask(top=self.limits.top, salt=salt, reuse=setting.reuse or not self.limits.switch, extra=self.limits.extra)

    def _shown(self, length: int, answer: Answer) -> Shown:
        def cached() -> int:
            """Raises TargetFailed for a count that can't be true."""
            hit, total = answer.cached or 0, answer.prompt_tokens
            if hit < 0 or (self.limits.ids and (hit > length + 1 or (total is not None and not 0 <= total - length <= 1))):
                raise TargetFailed(
                    f"the server counts {total} tokens, {hit} of them cached, in a prompt of {length}", hint="its usage counts are untrue"
                )
            return min(hit, length)

        return Shown(rows=[self._row(answer.shown)], cached=cached if self.limits.usage else None)

    def _row(self, shown: Mapping[Name, float]) -> Row:
        ids = self.limits.named_below
        row = np.full(ids + (0 if self.limits.named_by_id else _TEXTS), np.nan)
        for name, score in shown.items():
            place = name if isinstance(name, int) else ids + self._places.setdefault(name, len(self._places))
            if 0 <= place < len(row):
                row[place] = score
        return row


def _capabilities(limits: Limits) -> frozenset[Capability]:
    """Never FULL_ROWS, even where every score is shown: who shares a batch with whom is the server's choice at each moment, so no two
    runs are sure to have equal shapes, and bits prove nothing."""
    found = {Capability.BATCH, Capability.RAGGED}
    found.add(Capability.RESENT if limits.cold is None else Capability.REUSE)
    if limits.salt is not None:
        found.add(Capability.SALT)
    if limits.usage:
        found.add(Capability.USAGE)
    return frozenset(found)


def _hits(limits: Limits) -> str:
    told = "counted" if limits.usage else "not counted"
    off = f"avoided by {limits.cold}" if limits.cold else "nothing keeps a request from them"
    blocks = f", in blocks of {limits.block_size}" if limits.block_size else ""
    return f"{told}{blocks}, {off}"


def connect(url: str, *, key: str | None = None, model: str | None = None, timeout: float = 60.0, vocab: int | None = None) -> Server:
    """Raises TargetUnusable. A URL without a path means /v1 below it."""
    client = Client(url, key=key, timeout=timeout)
    client.path = client.path or "/v1"
    return Server(client, find_out(client, model=model, vocab=vocab), name=url)
