"""A cheap semantic regression: does a long prompt disturb a short one, in either order, or after a prefix hit?

One fixed pair is answered greedily: each alone, both together in both orders, and once more with the prompts' blocks still in
the prefix cache. Each answer must equal its prompt's answer alone, token for token. A fault of masks, positions or block
tables often leaves the first tokens intact and spoils the rest, so the second half is judged by itself; and every text is
searched for loops and garbage, which show a fault that is the same in every way of running.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from kvpact.errors import InvalidParameter, UnreadableFile
from kvpact.params import SamplingParams
from kvpact.tools import text_health

SCHEMA_VERSION = 1
BASELINE_KIND = "regress-baseline"

#: The fixed pair. Changing a word makes every recorded baseline useless.
PAIR: Mapping[str, str] = MappingProxyType(
    {
        "long": (
            "The ferry to the island runs four times a day in summer and twice in winter. It carries eleven cars, a hundred and twenty "
            "people, and on Tuesdays the post. The crossing takes forty minutes in calm weather. When the wind comes from the north the "
            "captain waits in the harbour, because the channel is narrow and the rocks on its western side can't be seen at high tide. "
            "The island has one shop, one school with nine children, and a lighthouse that has not had a keeper since 1987. Its lamp is "
            "now switched on by a small computer, which the islanders do not trust: every evening somebody walks up the hill to see "
            "whether it is lit. The shop sells bread that arrives with the first ferry, so when the ferry does not run there is no bread, "
            "and people bake their own. In the spring of last year the ferry's engine failed on a Friday and was not repaired until the "
            "following Wednesday. The children had no lessons, since their teacher lives on the mainland, and the whole island smelled "
            "of baking. Write a summary of this text in two sentences, and then explain why people on the island sometimes bake bread."
        ),
        "short": "What is the capital of France?",
    }
)


class Answerer(Protocol):
    """What is used of `kvpact.LLM`."""

    @property
    def tokenizer(self) -> Any: ...
    def generate(self, prompts: Any, sampling_params: Any = None, *, use_tqdm: bool = True) -> Sequence[Any]: ...


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One prompt's answer. way: how it was run."""

    prompt: str
    way: str
    text: str
    token_ids: tuple[int, ...]
    num_cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong. check: `differs`, `second-half`, `text` or `baseline`."""

    check: str
    prompt: str
    way: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Every answer, and what is wrong with them; healthy when nothing is."""

    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return not self.findings

    @property
    def consistent(self) -> bool:
        """Whether each prompt has one answer, however it was run; whether that is a good one is another matter."""
        return not any(finding.check in ("differs", "second-half") for finding in self.findings)


def examine(
    llm: Answerer, prompts: Mapping[str, Mapping[str, Any]], *, max_tokens: int = 64, tell: Callable[[str], None] = lambda text: None
) -> Report:
    """Run `prompts` (name -> prompt dict of `LLM.generate`; two or more) in every way and judge the answers.

    tell: is told each way before it runs.
    """
    if len(prompts) < 2:
        raise InvalidParameter(f"{len(prompts)} prompts can't disturb each other", hint="give two or more")
    answers = answer_in_every_way(llm, prompts, SamplingParams(temperature=0.0, max_tokens=max_tokens), tell)
    return Report(answers=answers, findings=(*compare_ways(answers), *inspect_texts(answers, llm.tokenizer.eos_token_ids)))


def answer_in_every_way(
    llm: Answerer, prompts: Mapping[str, Mapping[str, Any]], params: SamplingParams, tell: Callable[[str], None]
) -> tuple[Answer, ...]:
    """Alone, together in both orders, and together after a prefix hit."""
    forward = list(prompts)
    backward = forward[::-1]
    # Salts keep the ways apart: without them all but the first would find its blocks and compute almost nothing.
    ways = [("alone", f"alone {name}", [name]) for name in forward]
    ways += [(f"together, {order[0]} first", f"{order[0]} first", order) for order in (forward, backward)]
    ways.append(("together, after a prefix hit", f"{forward[0]} first", forward))
    answers: list[Answer] = []
    for number, (way, salt, order) in enumerate(ways, 1):
        tell(f"{number} of {len(ways)}: {way}, {' and '.join(order)}")
        salted = {name: {**prompts[name], "cache_salt": f"regress, {salt}"} for name in order}
        answers += _ask(llm, salted, way, params)
    return tuple(answers)


def _ask(llm: Answerer, prompts: Mapping[str, Mapping[str, Any]], way: str, params: SamplingParams) -> list[Answer]:
    outputs = llm.generate(list(prompts.values()), params, use_tqdm=False)
    return [
        Answer(
            prompt=name,
            way=way,
            text=output.outputs[0].text,
            token_ids=tuple(output.outputs[0].token_ids),
            num_cached_tokens=output.num_cached_tokens,
        )
        for name, output in zip(prompts, outputs, strict=True)
    ]


def compare_ways(answers: Sequence[Answer]) -> list[Finding]:
    """Each answer against the same prompt's answer alone."""
    alone = {answer.prompt: answer for answer in answers if answer.way == "alone"}
    return [
        finding
        for answer in answers
        if answer.way != "alone"
        for finding in _differences(alone[answer.prompt].token_ids, answer, "differs", "from the answer alone")
    ]


def _differences(expected: Sequence[int], answer: Answer, check: str, against: str) -> list[Finding]:
    place = first_divergence(expected, answer.token_ids)
    if place is None:
        return []
    here, there = _token_at(answer.token_ids, place), _token_at(expected, place)
    message = f"differs {against} at token {place} of {len(expected)}: {here}, not {there}"
    found = [Finding(check=check, prompt=answer.prompt, way=answer.way, message=message)]
    if check == "differs" and second_half(expected) != second_half(answer.token_ids):
        message = f"the second half ({len(second_half(expected))} tokens) is another text than alone"
        found.append(Finding(check="second-half", prompt=answer.prompt, way=answer.way, message=message))
    return found


def first_divergence(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """The first index at which the two differ, one ending early included; None when they are equal."""
    for index, (left, right) in enumerate(zip(expected, found, strict=False)):
        if left != right:
            return index
    return None if len(expected) == len(found) else min(len(expected), len(found))


def second_half(token_ids: Sequence[int]) -> tuple[int, ...]:
    """The later half; of an odd number, the longer one."""
    return tuple(token_ids[len(token_ids) // 2 :])


def _token_at(token_ids: Sequence[int], place: int) -> str:
    return f"token id {token_ids[place]}" if place < len(token_ids) else "the end"


def inspect_texts(answers: Sequence[Answer], special_ids: frozenset[int]) -> list[Finding]:
    """Loops, repetition and stray tokens in every answer. special_ids: tokens that may only end it."""
    return [
        Finding(check="text", prompt=answer.prompt, way=answer.way, message=f"{fault.detector}: {fault.message}")
        for answer in answers
        for fault in text_health.examine(answer.token_ids, answer.text, special_ids)
    ]


def record_baseline(report: Report, file: Path, *, model: str, settings: Mapping[str, Any]) -> None:
    """Write what the pair answers alone, for a later `--against`. settings: what the numbers depend on."""
    alone = [answer for answer in report.answers if answer.way == "alone"]
    answers = {answer.prompt: {"text": answer.text, "token_ids": list(answer.token_ids)} for answer in alone}
    document = {"schema_version": SCHEMA_VERSION, "kind": BASELINE_KIND, "model": model, "settings": dict(settings), "answers": answers}
    try:
        file.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UnreadableFile(f"baseline {file} can't be written: {error}", hint="name a file in a folder that can be written") from error


def read_baseline(file: Path, *, model: str, settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Token ids by prompt; raises UnreadableFile, or InvalidParameter when it was recorded from something else."""
    hint = "record one with `kvpact regress --record FILE`"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"baseline {file} can't be read: {error}", hint=hint) from error
    if not isinstance(document, dict) or (document.get("kind"), document.get("schema_version")) != (BASELINE_KIND, SCHEMA_VERSION):
        raise UnreadableFile(f"{file} is no baseline of schema {SCHEMA_VERSION}", hint=hint)
    recorded = (document.get("model"), document.get("settings"))
    if recorded != (model, dict(settings)):
        raise InvalidParameter(f"baseline {file} was recorded from {recorded}, this run is {(model, dict(settings))}", hint=hint)
    try:
        return {name: tuple(int(token) for token in answer["token_ids"]) for name, answer in document["answers"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableFile(f"baseline {file} lacks its answers", hint=hint) from error


def compare_with_baseline(report: Report, baseline: Mapping[str, Sequence[int]]) -> Report:
    """The report, with a finding for each answer alone that differs from the recorded one or was never recorded."""
    found = list(report.findings)
    for answer in report.answers:
        if answer.way == "alone" and answer.prompt in baseline:
            found += _differences(baseline[answer.prompt], answer, "baseline", "from the baseline")
        elif answer.way == "alone":
            found.append(Finding(check="baseline", prompt=answer.prompt, way=answer.way, message="is not in the baseline"))
    return Report(answers=report.answers, findings=tuple(found))
