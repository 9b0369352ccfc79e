"""`step(token_ids, state) -> (logits, state)`: the callable keeps the batch's state, the doctor says which tokens come."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpact.doctor.adapters import callable_claims as claims
from kvpact.doctor.adapters.callable_claims import STEP_FORM
from kvpact.doctor.adapters.declared import Declarations
from kvpact.doctor.claim import Claim
from kvpact.doctor.errors import Malformed, TargetFailed, TargetUnusable
from kvpact.doctor.target import Capability, Row, Session, Setting, Target
from kvpact.errors import KvpactError

#: Tokens of a context where nobody says how many there may be.
LONGEST = 256

Step = Callable[..., Any]


class CallableStep(Target):
    """declared: vocab_size, max_len, block_size, window, copyable, truncate, reorder, where the user tells them. again: the same at
    another precision, where a factory made it. vocab: as the command line says it, before what is declared."""

    level = 1

    def __init__(self, step: Step, declared: Declarations, *, name: str, vocab: int | None = None) -> None:
        self.step = step
        self.name = name
        self.again: Callable[[str], Target] | None = None
        self.max_len = declared.number("max_len") or LONGEST
        self.block_size, self.window = declared.number("block_size"), declared.number("window")
        self.cut, self.order = declared.function("truncate", "length", step), declared.function("reorder", "rows", step)
        copyable, said = declared.flag("copyable"), vocab or declared.number("vocab_size")
        self.claims = _claims(declared)
        self.pads = "pad_id" in _names(step)
        self.untrue: dict[Capability, str] = {}
        self._told = declared.told()
        found = {Capability.FULL_ROWS, Capability.ABORT, Capability.UNTOLD_REUSE}
        found |= {Capability.FORK, Capability.SAVE} if copyable else set()
        found |= {Capability.TRUNCATE} if self.cut else set()
        self.vocab_size, self.shows_all = 0, False
        self.vocab_size, more = self._probed(said)
        found |= more
        if Capability.BATCH in found and self.pads:
            found.add(Capability.PADDING)
        if found & {Capability.BATCH, Capability.EVEN_BATCH} and self.order:
            found.add(Capability.REORDER)
        self.capabilities = frozenset(found)

    def open(self, setting: Setting) -> Session:
        return _StepSession(self, setting)

    def describe(self) -> Mapping[str, str]:
        return {"engine": f"callable {self.name}", "vocabulary": str(self.vocab_size), **self._told}

    def at_precision(self, dtype: str) -> Target | None:
        return None if self.again is None else self.again(dtype)

    def call(self, token_ids: list[list[int]], state: Any, pad_id: int | None = None) -> tuple[list[list[Row]], Any]:
        """Rows by row of the batch. Raises Malformed for what is no answer."""
        given = {} if pad_id is None else {"pad_id": pad_id}
        answer = self.step(token_ids, state, **given)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise Malformed(f"{self.name} gave {_shape(answer)}, not a pair", hint=STEP_FORM)
        return rows_of(answer[0], [len(row) for row in token_ids], self.name, self.vocab_size, whole=self.shows_all), answer[1]

    def _probed(self, vocab: int | None) -> tuple[int, set[Capability]]:
        """The vocabulary, and what a few calls show that it can do. Raises TargetUnusable."""
        try:
            ((*shown, last),), state = self.call([[0, 1, 2]], None)
            self.call([[3]], state)
        except KvpactError as error:
            raise TargetUnusable(error.message, hint=error.hint) from error
        except Exception as error:  # whatever a user's loop raises
            raise TargetUnusable(
                f"{self.name} failed on three tokens and one more: {type(error).__name__}: {error}",
                hint="it is called as step([[0, 1, 2]], None), then as step([[3]], state)",
            ) from error
        if vocab is not None and vocab != last.size:
            raise TargetUnusable(
                f"{self.name} gives {last.size} logits, and vocab_size is said to be {vocab}", hint="correct it, or leave it out"
            )
        self.vocab_size, self.shows_all = int(last.size), bool(shown)
        found = {Capability.ALL_ROWS} if shown else set()
        found |= self._tried("several tokens at once after the first call", Capability.CHUNK, [[0, 1, 2]], [[3, 0]])
        return self.vocab_size, found | self._batches()

    def _batches(self) -> set[Capability]:
        found = self._tried("two rows of different lengths", Capability.BATCH, [[0, 1, 2], [3]], [[0], [1]])
        if found or Capability.BATCH in self.untrue:
            return found
        even = self._tried("two rows of equal length", Capability.EVEN_BATCH, [[0, 1, 2], [3, 0, 1]], [[0], [1]])
        if even:
            self._told["even-batch"] = "rows of equal length are taken together"
        elif Capability.EVEN_BATCH not in self.untrue:
            del self._told["no even-batch"]  # no batch at all: that is told
        return even

    def _tried(self, what: str, capability: Capability, *calls: list[list[int]]) -> set[Capability]:
        state = None
        try:
            for token_ids in calls:
                _, state = self.call(token_ids, state)
        except Malformed as error:
            self.untrue[capability] = error.message
            self._told[f"no {capability.value}"] = f"{what}: {error.message}"
            return set()
        except Exception as error:  # it can't do that: no fault, but it is told
            self._told[f"no {capability.value}"] = f"{what}: {type(error).__name__}: {error}"
            return set()
        return {capability}


@dataclass(kw_only=True)
class _Group:
    """Contexts that were fed together first: one state."""

    names: list[str]
    state: Any = None
    lengths: dict[str, int] = field(default_factory=dict)


class _StepSession(Session):
    def __init__(self, target: CallableStep, setting: Setting) -> None:
        self._target = target
        self._pad_id = setting.pad_id if target.pads else None
        self._groups: dict[str, _Group] = {}

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        names = list(tokens)
        group = self._groups.get(names[0])
        if group is None:
            if any(name in self._groups for name in names):
                raise TargetFailed("a new context can't join the batch of an old one", hint="feed new contexts together")
            group = _Group(names=names)
            self._groups.update(dict.fromkeys(names, group))
        elif set(names) != set(group.names) or len({len(tokens[name]) for name in names}) != 1:
            raise TargetFailed("rows of one state move together", hint="feed the same contexts, equally many tokens each")
        rows, group.state = self._target.call([list(tokens[name]) for name in group.names], group.state, self._pad_id)
        for name in group.names:
            group.lengths[name] = group.lengths.get(name, 0) + len(tokens[name])
        return dict(zip(group.names, rows, strict=True))

    def _alone(self, name: str) -> _Group:
        group = self._groups[name]
        if len(group.names) != 1:
            raise TargetFailed(f"{name} shares a state with {len(group.names) - 1} others", hint="do that to contexts that are alone")
        return group

    def truncate(self, name: str, length: int) -> None:
        group = self._alone(name)
        assert self._target.cut is not None, "rules ask for the capability"
        group.state = _given_back("truncate", self._target.cut(group.state, length), group.state)
        group.lengths[name] = length

    def fork(self, name: str, new: str) -> None:
        self.load(new, self._alone(name))

    def reorder(self, names: Sequence[str], sources: Sequence[str]) -> None:
        group = self._groups[names[0]]
        taken = dict(zip(names, sources, strict=True))
        order = [group.names.index(taken[name]) for name in group.names]
        assert self._target.order is not None, "rules ask for the capability"
        group.state = _given_back("reorder", self._target.order(group.state, order), group.state)
        group.lengths = {name: group.lengths[taken[name]] for name in group.names}

    def abort(self, name: str) -> None:
        self._alone(name)
        del self._groups[name]

    def save(self, name: str) -> Any:
        return copy.deepcopy(self._alone(name))

    def load(self, name: str, saved: Any) -> None:
        (length,) = saved.lengths.values()
        self._groups[name] = _Group(names=[name], state=copy.deepcopy(saved.state), lengths={name: length})


def _claims(declared: Declarations) -> dict[Capability, Claim]:
    copyable = claims.copyable(declared.where("copyable"))
    return {
        Capability.BATCH: claims.BATCH,
        Capability.EVEN_BATCH: claims.BATCH,
        Capability.CHUNK: claims.CHUNK,
        Capability.PADDING: claims.PADDING,
        Capability.FORK: copyable,
        Capability.SAVE: copyable,
        Capability.TRUNCATE: claims.truncate(declared.where("truncate")),
        Capability.REORDER: claims.reorder(declared.where("reorder")),
    }


def _given_back(name: str, state: Any, before: Any) -> Any:
    """Without a state the step would begin anew, and nobody would see why."""
    if state is None and before is not None:
        raise Malformed(f"{name}(state, ...) gave None", hint="give the state back, even where it was changed in place")
    return state


def rows_of(logits: Any, counts: Sequence[int], name: str, vocab: int = 0, *, whole: bool = False) -> list[list[Row]]:
    """counts: tokens that each row was given. One row of scores for each token, or the last one's. vocab: how many scores, where that
    is known. whole: earlier calls gave a row for each token, so one row alone is none for several. Raises Malformed."""
    try:
        parts = [as_array(part) for part in logits]
    except (TypeError, ValueError) as error:
        raise Malformed(f"{name} gave {_shape(logits)} for logits: {error}", hint=STEP_FORM) from error
    if len(parts) != len(counts):
        raise Malformed(f"{name} was given {len(counts)} rows and gave logits of {len(parts)}", hint=STEP_FORM)
    rows: list[list[Row]] = []
    for place, (part, count) in enumerate(zip(parts, counts, strict=True)):
        if part.ndim == 1 and part.size > 1:
            rows.append([part])
        elif part.ndim == 2 and part.shape[0] in ({count} if whole else {count, 1}) and part.shape[1] > 1:
            rows.append(list(part))
        else:
            tokens = f"{count} token{'s' if count > 1 else ''}"
            raise Malformed(
                f"{name}: row {place} was given {tokens}, and its logits have the shape {list(part.shape)}",
                hint=f"{STEP_FORM}; cut the padding off",
            )
        if vocab and part.shape[-1] != vocab:
            raise Malformed(f"{name}: row {place} has {part.shape[-1]} scores, and the first call gave {vocab}", hint=STEP_FORM)
    return rows


def as_array(part: Any) -> NDArray[Any]:
    """A copy, so that nothing which the user's loop writes later is met here. bf16 has no counterpart in NumPy: widening is exact."""
    if hasattr(part, "detach"):
        part = part.detach().float().cpu().numpy()
    array = np.array(part)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def _names(function: Any) -> frozenset[str]:
    try:
        return frozenset(signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


def _shape(given: Any) -> str:
    kind = type(given).__name__
    return (
        f"{kind} of shape {list(given.shape)}"
        if hasattr(given, "shape")
        else f"{kind} of {len(given)}"
        if hasattr(given, "__len__")
        else kind
    )
