"""Draws programs by a seed: what a serving engine goes through, with lengths around the edges where faults are likely."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kvpact.doctor.program import Abort, Advance, Expect, Fork, Load, Program, Reorder, Save, Step, Submit, Truncate
from kvpact.doctor.target import Capability, Setting, Target

#: Longer contexts show no more, and take longer.
_LONGEST = 140
#: A target whose contexts are no longer than this is filled to the last token now and then.
_FILLED = 300
_CONTEXTS = 6
#: Sizes of the cache that programs ask for: few, for an engine may be made anew for each.
_CAPACITIES = (160, 224)


def draw(target: Target, random: Random, actions: int | None = None) -> Program:
    """Every step can be taken by a target that is as it declares. actions: how many things are done, 3 to 9 by default."""
    drawing = _Drawing(target, random)
    drawing.begin()
    for _ in range(random.randint(3, 9) if actions is None else actions):
        drawing.act()
    if drawing.unfed:
        drawing.feed()
    expected = tuple(Expect(name) for name in drawing.contexts)
    return Program(steps=(*drawing.steps, *expected), setting=drawing.setting())


def edges(target: Target) -> list[int]:
    """One token, residues modulo 32 and 64, the block and the window: each with -1, 0, +1 and +2."""
    wanted = {1, 2}
    for edge in (32, 64, target.block_size, target.window):
        wanted |= {edge + more for more in (-1, 0, 1, 2)} if edge else set()
    return sorted(length for length in wanted if 1 <= length <= longest(target))


def longest(target: Target) -> int:
    return max(1, min(_LONGEST, target.max_len - 8))


@dataclass(kw_only=True)
class _Context:
    tokens: list[int]
    group: int


class _Drawing:
    """contexts: those that live. A group is what must be fed together: a batch, where the target keeps one state for its rows.

    unfed: something was done that only a feed can show. filled: contexts may reach the target's longest.
    """

    def __init__(self, target: Target, random: Random) -> None:
        self.target, self.random = target, random
        self.steps: list[Step] = []
        self.contexts: dict[str, _Context] = {}
        self.saved: dict[str, list[int]] = {}
        self.free: list[str] = []
        self.used, self.unfed, self.filled = 0, False, False
        self.edges, self.longest = edges(target), longest(target)

    def can(self, capability: Capability) -> bool:
        return self.target.can(capability)

    def setting(self) -> Setting:
        if self.can(Capability.CAPACITY) and not self.filled and self.random.random() < 0.5:
            sizes = [size for size in _CAPACITIES if size <= self.target.max_len]
            return Setting(capacity=self.random.choice(sizes)) if sizes else Setting()
        return Setting()

    def act(self) -> None:
        ways = [(self.feed, 6), (self.begin, 2), (self.truncate, 2), (self.fork, 2), (self.reorder, 2)]
        ways += [(self.save, 1), (self.load, 1), (self.abort, 1)]
        kinds, weights = zip(*ways, strict=True)
        for _ in range(6):
            if self.random.choices(kinds, weights)[0]():
                return
        self.feed()

    # Each of these gives False, and has done nothing, where it can't be done now.
    def begin(self) -> bool:
        room = _CONTEXTS - len(self.contexts)
        if room < 1:
            return False
        many = self.random.randint(1, min(3, room)) if self.can(Capability.BATCH) and self.random.random() < 0.5 else 1
        names = [self._name() for _ in range(many)]
        group = self.used
        for index, name in enumerate(names):
            tokens = self._prompt()
            self.steps.append(Submit(name, tuple(tokens)))
            self.contexts[name] = _Context(tokens=tokens, group=group + (index if self.can(Capability.RAGGED) else 0))
        sizes = {name: len(self.contexts[name].tokens) for name in names}
        size = sizes[names[0]]
        if many == 1 and size > 1 and self.can(Capability.CHUNK) and self.random.random() < 0.3:
            first = self.random.randint(1, size - 1)
            self.steps.append(Advance(((names[0], first),)))
            sizes = {names[0]: size - first}
        self.steps.append(Advance(tuple(sizes.items())))
        return True

    def feed(self) -> bool:
        names = self._together()
        return self._feed(names) if names else self.begin()

    def _feed(self, names: list[str]) -> bool:
        room = min(self._most() - len(self.contexts[name].tokens) for name in names)
        if room < 1:
            return False
        counts = dict.fromkeys(names, 1)
        if self.can(Capability.CHUNK) and self.random.random() < 0.35:
            count = self._towards_an_edge(len(self.contexts[names[0]].tokens), room)
            counts = dict.fromkeys(names, count)
            if self.can(Capability.RAGGED):
                counts = {name: self.random.choice((1, min(3, room), count)) for name in names}
        for name, count in counts.items():
            new = self._tokens(count)
            self.steps.append(Submit(name, tuple(new)))
            self.contexts[name].tokens += new
        self.steps.append(Advance(tuple(counts.items())))
        self.unfed = False
        return True

    def truncate(self) -> bool:
        names = [name for name in self._alone() if len(self.contexts[name].tokens) > 1]
        if not self.can(Capability.TRUNCATE) or not names:
            return False
        context = self.contexts[name := self.random.choice(names)]
        length = len(context.tokens)
        lengths = [1, length - 1, max(1, length - 5), *(edge for edge in self.edges if edge < length)]
        self.steps.append(Truncate(name, kept := self.random.choice(lengths)))
        del context.tokens[kept:]
        self.unfed = True
        return True

    def fork(self) -> bool:
        if not self.can(Capability.FORK) or not self._alone() or len(self.contexts) >= _CONTEXTS:
            return False
        source, name = self.random.choice(self._alone()), self._name()
        self.steps.append(Fork(source, name))
        self.contexts[name] = _Context(tokens=list(self.contexts[source].tokens), group=self.used)
        if self.random.random() < 0.7:  # a fork shows what it is when both go on
            for each in self.random.sample([source, name], 2):
                self._feed([each])
        return True

    def reorder(self) -> bool:
        groups = [group for group in self._groups() if len(group) > 1]
        if not self.can(Capability.REORDER) or not groups:
            return False
        names = self.random.choice(groups)
        sources = [self.random.choice(names) for _ in names]
        self.steps.append(Reorder(tuple(names), tuple(sources)))
        before = {name: list(self.contexts[name].tokens) for name in names}
        for name, source in zip(names, sources, strict=True):
            self.contexts[name].tokens = list(before[source])
        self.unfed = True
        return True

    def save(self) -> bool:
        if not self.can(Capability.SAVE) or not self._alone():
            return False
        name, key = self.random.choice(self._alone()), f"saved {len(self.saved)}"
        self.steps.append(Save(name, key))
        self.saved[key] = list(self.contexts[name].tokens)
        return True

    def load(self) -> bool:
        if not self.saved or len(self.contexts) >= _CONTEXTS:
            return False
        key, name = self.random.choice(list(self.saved)), self._name()
        self.steps.append(Load(key, name))
        self.contexts[name] = _Context(tokens=list(self.saved[key]), group=self.used)
        self.unfed = True
        return True

    def abort(self) -> bool:
        if not self.can(Capability.ABORT) or len(self.contexts) < 2 or not self._alone():
            return False
        name = self.random.choice(self._alone())
        self.steps.append(Abort(name))
        del self.contexts[name]
        self.free.append(name)
        return self.begin() if self.random.random() < 0.5 else True

    def _name(self) -> str:
        """That of a context that was given up, now and then: nothing of it may be left."""
        self.used += 1
        if self.free and self.random.random() < 0.6:
            return self.free.pop()
        return f"c{self.used}"

    def _groups(self) -> list[list[str]]:
        groups: dict[int, list[str]] = {}
        for name, context in self.contexts.items():
            groups.setdefault(context.group, []).append(name)
        return list(groups.values())

    def _alone(self) -> list[str]:
        return [group[0] for group in self._groups() if len(group) == 1]

    def _together(self) -> list[str]:
        """Contexts for one call."""
        groups = self._groups()
        if not groups:
            return []
        if not self.can(Capability.RAGGED):
            return self.random.choice(groups)
        names = list(self.contexts)
        return self.random.sample(names, self.random.randint(1, len(names)))

    def _most(self) -> int:
        return self.target.max_len if self.filled else self.longest

    def _prompt(self) -> list[int]:
        """Often the beginning of what another context has, for caches that share."""
        if self.target.max_len <= _FILLED and not self.contexts and self.random.random() < 0.04:
            self.filled = True
            return self._tokens(self.target.max_len - 3)
        length = self.random.choice(self.edges) if self.random.random() < 0.5 else self.random.randint(1, min(12, self.longest))
        shared: list[int] = []
        if self.contexts and self.random.random() < 0.4:
            other = self.random.choice(list(self.contexts.values())).tokens
            shared = other[: self.random.choice([len(other), *(edge for edge in self.edges if edge <= len(other))])]
        return (shared + self._tokens(max(1, length - len(shared))))[: self.longest]

    def _tokens(self, count: int) -> list[int]:
        """All of them from the lower half of the vocabulary, or all from its third quarter: see `machine.hidden`."""
        vocab = self.target.vocab_size
        if vocab >= 16 and self.random.random() < 0.4:
            return [self.random.randrange(vocab // 2, vocab // 2 + vocab // 4) for _ in range(count)]
        return [self.random.randrange(min(8, vocab // 8), max(1, vocab // 2)) for _ in range(count)]

    def _towards_an_edge(self, length: int, room: int) -> int:
        ahead = [edge - length for edge in self.edges if 1 <= edge - length <= room]
        return self.random.choice([min(2, room), min(5, room), *ahead])
