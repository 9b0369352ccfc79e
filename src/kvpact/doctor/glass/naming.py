"""From the symptoms of one row to the code of the rule that they break, and to words that a person can act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvpact.doctor.glass import words
from kvpact.doctor.glass.diagnose import POSITIONAL, Sign, Symptom, visible_tokens
from kvpact.doctor.glass.scene import Origin, Scene, Whose
from kvpact.doctor.glass.spec import tag
from kvpact.visibility import Visibility


@dataclass(frozen=True, kw_only=True)
class Named:
    """A broken clause as one row shows it. cause, cure: pair from `words`."""

    code: str
    what: str
    expected: str
    got: str
    layer: int | None
    remedy: tuple[str, str]
    evidence: Mapping[str, Any] = field(default_factory=dict)


def name(scene: Scene, symptoms: Sequence[Symptom], visibility: Visibility, *, layers: int, hits: bool, rotary: bool) -> Named | None:
    """The most telling first: values of another layer or head, then what is seen, then where it stands. hits: entries may come from
    earlier requests."""
    case = _Case(scene, symptoms, visibility, layers, hits, rotary)
    for explain in (case.mixed, case.extra, case.missing, case.empty, case.counts, case.tags, case.places):
        named = explain()
        if named is not None:
            return named
    return None


class _Case:
    def __init__(self, scene: Scene, symptoms: Sequence[Symptom], visibility: Visibility, layers: int, hits: bool, rotary: bool) -> None:
        self.scene, self.symptoms, self.visibility = scene, symptoms, visibility
        self.layers, self.hits, self.rotary = layers, hits, rotary
        self.visible = visible_tokens(scene, visibility)
        self.expected = sorted(self.visible.values())

    def first(self, *signs: Sign) -> Symptom | None:
        return next((symptom for sign in signs for symptom in self.symptoms if symptom.sign is sign), None)

    def named(self, code: str, symptom: Symptom, what: str, expected: str, got: str, key: str, **evidence: Any) -> Named:
        everywhere = len({s.layer for s in self.symptoms if s.sign is symptom.sign}) == self.layers
        layer = None if everywhere else symptom.layer
        here = "" if layer is None else f", in layer {layer} only"
        evidence = {"visible_expected": self.expected, **evidence}
        return Named(
            code=code,
            what=what + here,
            expected=expected,
            got=got,
            layer=layer,
            remedy=words.remedy(code, key, self.scene.after),
            evidence=evidence,
        )

    def mixed(self) -> Named | None:
        symptom = self.first(Sign.MIXED)
        if symptom is None:
            return None
        code = "KV309" if symptom.said.startswith("layer") else "KV308"
        own = f"layer {symptom.layer}" if code == "KV309" else "each head its own"
        what = f"layer {symptom.layer} reads the values of {symptom.said}"
        return self.named(code, symptom, what, f"values of {own}", f"values of {symptom.said}", "", visible_seen=self.expected)

    def extra(self) -> Named | None:
        symptom = self.first(Sign.EXTRA)
        if symptom is None:
            return None
        own = [self.scene.context.index(token) for token in symptom.read if token in self.scene.context]
        if own:
            return self._beyond_window(symptom, sorted(own))
        origins = [self.scene.origin(token) for token in symptom.read]
        whose = Counter(origin.whose for origin in origins).most_common(1)[0][0]
        mine = [origin for origin in origins if origin.whose is whose]
        code = self._code_of(whose)
        if whose is Whose.NOBODY and (self.first(Sign.EMPTY) or any(abs(count - 1) > 0.1 for count in symptom.read.values())):
            return self._garbled(symptom)
        if code == "KV301" and len(seen := self._seen(symptom)) < len(self.expected):
            code = "KV204"  # not one entry too many, but a new one whose place still holds the old
        seen, got = self._seen(symptom), _listed(whose, mine, sum(symptom.read.values()))
        what = f"{words.QUERY[self.scene.phase]} at position {self.scene.position} sees {got}"
        key = f"{whose.name.lower()} {self.scene.phase.value}"
        more: dict[str, Any] = {"visible_seen": seen}
        if whose is Whose.FUTURE:
            more["visible_seen"] = sorted({*seen, *(origin.position for origin in mine)})
        elif whose is Whose.PADDING:
            more["padding_seen"] = round(sum(symptom.read.values()))
        else:
            more["foreign_seen"] = {name: sorted(o.position for o in mine if o.name == name) for name in {o.name for o in mine}}
        return self.named(code, symptom, what, f"positions {_range(self.expected)} of its own request", got, key, **more)

    def _code_of(self, whose: Whose) -> str:
        after = self.scene.after
        if whose is Whose.NEIGHBOUR and "load" in after:
            return "KV604"
        if whose is Whose.NEIGHBOUR:
            return "KV302" if "fork" in after else "KV305" if "reorder" in after else "KV205"
        if whose is Whose.ENDED:
            return "KV305" if "reorder" in after else "KV205" if self.hits else "KV204"
        return {Whose.FUTURE: "KV201", Whose.PADDING: "KV202", Whose.DROPPED: "KV301"}.get(whose, "KV205")

    def _seen(self, symptom: Symptom) -> list[int]:
        """Own positions that the symptom's layer sees."""
        missing = {token for other in self.symptoms if other.sign is Sign.MISSING and other.layer == symptom.layer for token in other.read}
        return sorted(place for token, place in self.visible.items() if token not in missing)

    def _beyond_window(self, symptom: Symptom, own: list[int]) -> Named:
        window = self.visibility.window or 0
        seen = sorted({*self._seen(symptom), *own})
        far = self.scene.position - own[0] + 1
        what = f"the query at position {self.scene.position} sees {far} positions back, its window is {window}"
        expected = f"positions {_range(self.expected)}"
        return self.named("KV206", symptom, what, expected, f"positions {_range(seen)}", "wide", visible_seen=seen)

    def missing(self) -> Named | None:
        symptom = self.first(Sign.MISSING)
        if symptom is None:
            return None
        lost = sorted(self.visible[token] for token in symptom.read)
        if lost == self.expected:
            return self._garbled(symptom)
        seen = [place for place in self.expected if place not in lost]
        window, sinks = self.visibility.window, self.visibility.sinks
        start = self.scene.position - window + 1 if window else 0
        code, key = "KV203", self._lost_key(lost)
        if window and start > 0 and all(place < sinks for place in lost) and start > lost[-1]:
            code, key = "KV207", ""
        elif window and start >= 0 and lost == list(range(start, lost[-1] + 1)) and len(seen) > 1:
            code, key = "KV206", "narrow"
        twice = [t for other in self.symptoms if other.sign is Sign.COUNT and other.layer == symptom.layer for t in other.read]
        doubled = sorted(self.visible[token] for token in twice if token in self.visible)
        again = f"; position {_range(doubled)} counts more than once" if doubled else ""
        if doubled and code == "KV203":
            key = "twice"
        what = f"{words.QUERY[self.scene.phase]} at position {self.scene.position} does not see position {_range(lost)}{again}"
        return self.named(
            code, symptom, what, f"positions {_range(self.expected)}", f"positions {_range(seen)}{again}", key, visible_seen=seen
        )

    def _lost_key(self, lost: list[int]) -> str:
        if lost[-1] == self.scene.position and lost == list(range(lost[0], lost[-1] + 1)):
            return "upper-left"
        if lost == self.expected[:-1]:
            return f"all {self.scene.phase.value}"
        if lost[-1] == self.scene.position - 1 and len(lost) == 1:
            return "last"
        return f"some {self.scene.phase.value}"

    def _garbled(self, symptom: Symptom) -> Named:
        """What is read back are no tokens' values, in whole numbers: sight is not what is wrong."""
        what = f"values read at position {self.scene.position} are not those that were stored"
        return self.named("KV602", symptom, what, "each visible token's value, once", "other values, or other weights", "")

    def empty(self) -> Named | None:
        symptom = self.first(Sign.EMPTY)
        if symptom is None:
            return None
        number = symptom.read[0]
        if number < 0.75 or abs(number - round(number)) > 0.01 * (2 + number):
            return self._garbled(symptom)  # whole entries are empty, or none
        got = f"{number:.2f} entries that nothing was written to"
        what = f"{words.QUERY[self.scene.phase]} at position {self.scene.position} sees {got}"
        return self.named("KV204", symptom, what, "written entries only", got, "unwritten", visible_seen=self.expected, empty_seen=number)

    def counts(self) -> Named | None:
        symptom = self.first(Sign.COUNT)
        if symptom is None:
            return None
        token, count = next(iter(symptom.read.items()))
        place = self.visible.get(token, -1)
        got = f"position {place} counts {count:.2f} times"
        whole = all(abs(value - round(value)) < 0.1 and value > 1.5 for value in symptom.read.values())
        code = "KV204" if whole else "KV602"
        what = f"the query at position {self.scene.position} sees position {place} with the weight of {count:.2f} entries"
        return self.named(code, symptom, what, "each position once", got, "doubled", visible_seen=self.expected)

    def tags(self) -> Named | None:
        symptom = self.first(Sign.TAG)
        if symptom is None:
            return None
        places = sorted(self.visible[token] for token in symptom.read)
        scale = self._scale(symptom)
        if scale is not None:
            what = f"scores at position {self.scene.position} are {scale:.2f} times what they should be"
            return self.named("KV101", symptom, what, "scores over the root of head_dim", f"{scale:.2f} times those", "scores")
        foreign = any(origin.whose is Whose.NEIGHBOUR for origin in self.scene.origins.values())
        code = "KV305" if "reorder" in self.scene.after else "KV205" if foreign and len(places) > 1 else "KV204"
        got = f"at position {_range(places)} the key of another token than the value's"
        what = f"keys and values part: {got}"
        return self.named(code, symptom, what, "key and value of one token at each position", got, "keys", visible_seen=self.expected)

    def _scale(self, symptom: Symptom) -> float | None:
        """Keys of other tokens have their own tags; a wrong scale of the scores stretches all tags alike, from the query's own on."""
        own = tag(self.scene.query)
        pairs = [(symptom.read[token] - own, wanted - own) for token, wanted in symptom.expected.items() if wanted != own]
        ratios = [read / wanted for read, wanted in pairs]
        sure = len(ratios) > 2 or (len(ratios) > 0 and self.first(Sign.DISTANCE) is not None)
        if not sure or max(ratios) - min(ratios) > 0.1 * max(map(abs, ratios)):
            return None
        return sum(ratios) / len(ratios)

    def places(self) -> Named | None:
        wrong = [symptom for symptom in self.symptoms if symptom.sign in POSITIONAL]
        if not wrong:
            return None
        at = {symptom.layer for symptom in wrong}
        symptom = self.first(Sign.PLACE, Sign.DISTANCE, Sign.PREVIOUS, Sign.STORED)
        assert symptom is not None
        kind, got = words.pattern(symptom)
        if len(at) < self.layers:
            code = "KV215"
        elif kind != "shifted" and self.rotary:
            code = "KV214"
        elif self.scene.padding:
            code = "KV212"
        elif self.scene.after:
            code = "KV213"
        elif self.scene.phase.value == "prompt" and self.rotary and symptom.sign is Sign.DISTANCE:
            code = "KV214"
        else:
            code = "KV211"
        what = f"{words.QUERY[self.scene.phase]} at position {self.scene.position}: {got}"
        read = {str(self.visible.get(token, token)): round(value, 2) for token, value in symptom.read.items()}
        wanted = {str(self.visible.get(token, token)): value for token, value in symptom.expected.items()}
        expected = f"the query stands at position {self.scene.position}, and each key at its own"
        return self.named(code, symptom, what, expected, got, kind, visible_seen=self.expected, placed_expected=wanted, placed_read=read)


def _listed(whose: Whose, origins: Sequence[Origin], weight: float) -> str:
    if whose is Whose.PADDING:
        return f"{weight:.0f} padded entr{'y' if round(weight) == 1 else 'ies'}"
    if whose is Whose.NOBODY:
        return f"{len(origins)} tokens that nobody had submitted"
    places = f"position {_range(sorted({origin.position for origin in origins}))}"
    if whose is Whose.FUTURE:
        return f"{places}, which comes later"
    request = f"request {origins[0].name}"
    return {
        Whose.NEIGHBOUR: f"{places} of {request}, which runs beside it",
        Whose.DROPPED: f"{places} of {request}, which had been truncated away",
        Whose.ENDED: f"{places} of {request}, which had ended",
    }[whose]


def _range(places: Sequence[int]) -> str:
    """0..4, 7."""
    parts: list[list[int]] = []
    for place in places:
        if parts and parts[-1][-1] == place - 1:
            parts[-1][1:] = [place]
        else:
            parts.append([place])
    return ", ".join("..".join(map(str, part)) for part in parts) or "none"
