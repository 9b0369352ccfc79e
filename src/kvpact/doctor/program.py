"""Programs: what the doctor does to an engine, as data that can be printed, saved, shrunk and replayed on another one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from kvpact.doctor.errors import ProgramUnreadable
from kvpact.doctor.target import Capability, Setting

SCHEMA = 1


@dataclass(frozen=True)
class Step:
    """One thing done to a session."""

    needs: ClassVar[tuple[Capability, ...]] = ()


@dataclass(frozen=True)
class Submit(Step):
    """`tokens` are what context `name` is to be fed next, after whatever it has been given and not fed."""

    name: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Advance(Step):
    """One call of the engine: each named context is fed the next so many of its tokens."""

    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Truncate(Step):
    """The context keeps its first `length` tokens; what it was given and not fed is dropped."""

    name: str
    length: int
    needs: ClassVar = (Capability.TRUNCATE,)


@dataclass(frozen=True)
class Fork(Step):
    """`new` has seen what `name` has, and waits for the same tokens."""

    name: str
    new: str
    needs: ClassVar = (Capability.FORK,)


@dataclass(frozen=True)
class Reorder(Step):
    """As a beam search: names[i] takes over what sources[i] has seen; what they wait for stays with the name."""

    names: tuple[str, ...]
    sources: tuple[str, ...]
    needs: ClassVar = (Capability.REORDER,)


@dataclass(frozen=True)
class Abort(Step):
    name: str
    needs: ClassVar = (Capability.ABORT,)


@dataclass(frozen=True)
class Save(Step):
    """Save context `name` under `key`."""

    name: str
    key: str
    needs: ClassVar = (Capability.SAVE,)


@dataclass(frozen=True)
class Load(Step):
    """Bring back what lies under `key` as context `name`."""

    key: str
    name: str
    needs: ClassVar = (Capability.SAVE,)


@dataclass(frozen=True)
class Wait(Step):
    """Nothing happens for a while: idle clean-up gets its chance."""

    seconds: float


@dataclass(frozen=True)
class Expect(Step):
    """Every row that `name` has shown so far is the one that its tokens give when they are fed to a fresh context at once."""

    name: str


STEPS: Mapping[str, type[Step]] = {
    step.__name__: step for step in (Submit, Advance, Truncate, Fork, Reorder, Abort, Save, Load, Wait, Expect)
}


@dataclass(frozen=True, kw_only=True)
class Program:
    """Steps in order, in one session. setting: how that is opened. before: programs that ran in sessions of their own before."""

    steps: tuple[Step, ...]
    setting: Setting = field(default_factory=Setting)
    before: tuple[Program, ...] = ()

    @property
    def needs(self) -> frozenset[Capability]:
        """What a target must offer for the steps alone."""
        return frozenset(need for step in self.steps for need in step.needs)

    @property
    def length(self) -> int:
        return len(self.steps) + sum(other.length for other in self.before)

    def as_json(self) -> str:
        return json.dumps({"kvpact_program": SCHEMA, **self._data()}, sort_keys=True)

    def _data(self) -> dict[str, Any]:
        steps = [{"step": type(step).__name__, **asdict(step)} for step in self.steps]
        # Defaults stay out: a program that was saved before a setting came to be is written as it was.
        setting = {name: value for name, value in asdict(self.setting).items() if value != getattr(Setting(), name)}
        return {"steps": steps, "setting": setting, "before": [other._data() for other in self.before]}

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Raises ProgramUnreadable."""
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("kvpact_program") != SCHEMA:
                raise ValueError(
                    f"kvpact_program is {data.get('kvpact_program') if isinstance(data, dict) else type(data).__name__}, not {SCHEMA}"
                )
            return cls._from(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProgramUnreadable(f"this is not a program: {error}", hint="give a file that a finding wrote") from error

    @classmethod
    def _from(cls, data: Mapping[str, Any]) -> Program:
        return cls(
            steps=tuple(_step(item) for item in data["steps"]),
            setting=Setting(**data.get("setting", {})),
            before=tuple(cls._from(other) for other in data.get("before", ())),
        )

    def as_python(self) -> str:
        """Source that builds the program again."""
        return "\n".join(self._python(""))

    def _python(self, indent: str) -> Iterator[str]:
        yield f"{indent}Program("
        yield f"{indent}    steps=("
        for step in self.steps:
            yield f"{indent}        {step!r},"
        yield f"{indent}    ),"
        if self.setting != Setting():
            yield f"{indent}    setting={self.setting!r},"
        if self.before:
            yield f"{indent}    before=("
            for other in self.before:
                *lines, last = other._python(indent + "        ")
                yield from lines
                yield f"{last},"
            yield f"{indent}    ),"
        yield f"{indent})"


def _step(item: Mapping[str, Any]) -> Step:
    values = dict(item)
    kind = STEPS[values.pop("step")]
    known = {place.name for place in fields(kind)}
    if set(values) != known:
        raise ValueError(f"{kind.__name__} has {sorted(values)}, not {sorted(known)}")
    return kind(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def feed(name: str, tokens: Sequence[int], *counts: int) -> tuple[Step, ...]:
    """Submit `tokens`, then feed them in pieces of `counts`, the rest at once."""
    steps: list[Step] = [Submit(name, tuple(tokens))]
    done = 0
    for count in (*counts, len(tokens) - sum(counts)):
        if count > 0:
            steps.append(Advance(((name, count),)))
            done += count
    if done != len(tokens):
        raise ValueError(f"{counts} feed {done} of {len(tokens)} tokens")
    return tuple(steps)
