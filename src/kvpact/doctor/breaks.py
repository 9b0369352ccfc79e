"""What the cache's state after a step, or what kernels were told in it, breaks: each break under the code of the rule about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvpact.cache.laws import CacheView, broken_laws
from kvpact.doctor.finding import Where
from kvpact.doctor.views import StepView
from kvpact.ids import NULL_BLOCK


@dataclass(frozen=True, kw_only=True)
class Broken:
    """One place where a step left the cache, or moved entries, as no engine may."""

    code: str
    got: str
    step: int
    where: Where

    @property
    def place(self) -> str | int:
        """The block, whatever is wrong with it; else what is wrong."""
        return self.code if self.where.block is None else self.where.block


#: What breaks a law, by the law and what its text says -> the code. The first that fits.
_CODES: tuple[tuple[str, str, str], ...] = (
    ("release", "", "KV401"),
    ("ownership", r"counts \d+ holders, 0 hold it", "KV401"),
    ("conservation", "has 0 holders and is in the free queue 0 times", "KV401"),
    ("conservation", "", "KV402"),
    ("ownership", r"which it does not hold|shared or findable", "KV410"),
    ("ownership", "", "KV402"),
    ("publication", r"entries written|can't be found|does not have", "KV404"),
    ("publication", "", "KV502"),
    ("length", "", "KV408"),
    ("tables", "null block", "KV405"),
    ("tables", "is free or does not exist", "KV403"),
    ("tables", "", "KV408"),
)


def of_view(view: CacheView, step: int, *, trimmed: bool = False, fed: Mapping[str, tuple[int, ...]] | None = None) -> Iterator[Broken]:
    """Broken laws, each under the code of the rule that explains it. trimmed: whether the step was a truncate. fed: tokens by the names
    that the program has for contexts."""
    for violation in broken_laws(view):
        block = re.search(r"block (\d+)", violation.text)
        where = Where(block=int(block[1]) if block else None)
        code = "KV301" if trimmed and violation.law == "length" else _code(violation.law, violation.text, view)
        yield Broken(code=code, got=_named(violation.text, view, fed or {}), step=step, where=where)


def _named(text: str, view: CacheView, fed: Mapping[str, tuple[int, ...]]) -> str:
    """A sequence has the name of the one context with its tokens: its number tells how much the engine has done before."""
    names = {seq.seq_id: [name for name, tokens in fed.items() if tokens == tuple(seq.tokens)] for seq in view.sequences}

    def name(found: re.Match[str]) -> str:
        own = names.get(int(found[1]), [])
        return f"context {own[0]}" if len(own) == 1 else found[0]

    return re.sub(r"sequence (\d+)", name, text)


def _code(law: str, text: str, view: CacheView) -> str:
    if law == "identity":
        return _clash(text, view)
    return next(code for name, pattern, code in _CODES if name == law and re.search(pattern, text))


def _clash(text: str, view: CacheView) -> str:
    """Two hold a block for different contexts: of different identities, or one of them wrote over the other."""
    found = re.search(r"hold block (\d+)", text)
    block = int(found[1]) if found else NULL_BLOCK
    holders = {seq.identity for seq in view.sequences if any(block in table.block_ids for table in seq.tables.values())}
    entries = {group.findable[block].identity for group in view.groups if block in group.findable}
    if len(holders | entries) > 1:
        return "KV502"
    return "KV404" if "the prefix index" in text else "KV410"


def of_steps(steps: Sequence[StepView], fed: Mapping[str, tuple[int, ...]], view: CacheView | None, index: int) -> Iterator[Broken]:
    """What kernels were told, against the lengths that the contexts have. fed: all tokens so far, by context.

    A feed in pieces takes several steps, between which blocks may rightly move: the state is that after the latest one.
    """
    writers: dict[tuple[str, int], str] = {}
    latest = {(step.name, step.group): place for place, step in enumerate(steps)}
    for place, step in enumerate(steps):
        stop = step.start + len(step.slots)
        if step.name not in fed:
            continue
        yield from _reads(step, stop, index)
        last = latest[step.name, step.group] == place
        yield from _writes(step, fed[step.name], view if last else None, index)
        holds = view is None or any(map(len, _tables(view, step.group, fed[step.name])))
        for slot in step.slots if last and holds else ():
            other = writers.setdefault((step.group, slot), step.name)
            if other != step.name:
                got = f"slot {slot} in group {step.group} is written for {step.name} and for {other} in one step"
                yield Broken(code="KV410", got=got, step=index, where=Where(request=step.name, slot=slot, block=slot // step.block_size))


def _reads(step: StepView, stop: int, index: int) -> Iterator[Broken]:
    if step.read_length > stop:
        got = f"attention of {step.name} reads {step.read_length} entries, {stop} are written"
        yield Broken(code="KV408", got=got, step=index, where=Where(request=step.name, position=stop))
    for place, block in enumerate(step.table):
        if block == NULL_BLOCK and (place + 1) * step.block_size > step.first_visible and place * step.block_size < step.read_length:
            got = f"attention of {step.name} reads the null block at index {place} of its table"
            yield Broken(code="KV405", got=got, step=index, where=Where(request=step.name, block=NULL_BLOCK))


def _writes(step: StepView, tokens: tuple[int, ...], view: CacheView | None, index: int) -> Iterator[Broken]:
    """Each new entry belongs where the state's own table has its position."""
    tables = [step.table] if view is None else _tables(view, step.group, tokens)
    for position, slot in enumerate(step.slots, step.start):
        place, offset = divmod(position, step.block_size)
        owned = [table[place] * step.block_size + offset for table in tables if place < len(table)]
        if owned and slot not in owned:
            got = f"the entry of position {position} of {step.name} is written to slot {slot}, the state says {owned[0]}"
            yield Broken(code="KV409", got=got, step=index, where=Where(request=step.name, position=position, slot=slot))
            yield from _trespass(step, tokens, slot, view, index)
            return


def _trespass(step: StepView, tokens: tuple[int, ...], slot: int, view: CacheView | None, index: int) -> Iterator[Broken]:
    for seq in view.sequences if view is not None else ():
        place = list(seq.tables[step.group].block_ids)
        block = slot // step.block_size
        if tuple(seq.tokens) != tokens and block in place and place.index(block) * step.block_size < seq.num_computed_tokens:
            got = f"an entry of {step.name} is written to slot {slot}, in a block of another context"
            yield Broken(code="KV410", got=got, step=index, where=Where(request=step.name, slot=slot, block=block))


def _tables(view: CacheView, group: str, tokens: tuple[int, ...]) -> list[Sequence[int]]:
    """Of every sequence with these tokens: a step names the caller's context, a view does not."""
    return [seq.tables[group].block_ids for seq in view.sequences if tuple(seq.tokens) == tokens]
