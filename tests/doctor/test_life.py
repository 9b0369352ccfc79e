"""What breaks in a cache's state is named by one rule each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpact.cache import laws
from kvpact.cache.laws import BlockView, CacheView, FindableView, GroupView, SequenceView, TableView
from kvpact.doctor.breaks import of_steps, of_view
from kvpact.doctor.codes import CODES
from kvpact.doctor.exam import Exam
from kvpact.doctor.faults.kv401_block_leaked import FAULTS
from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.finding import Outcome
from kvpact.doctor.life import lives, programs
from kvpact.doctor.registry import all_rules, select
from kvpact.doctor.runner import examine
from kvpact.doctor.views import StepView


def _view(
    *,
    blocks: dict[int, BlockView] | None = None,
    free: tuple[int, ...] = (2, 3),
    table: tuple[int, ...] = (1,),
    computed: int = 3,
    findable: dict[int, FindableView] | None = None,
    living: bool = True,
) -> CacheView:
    """Three blocks of 4; one sequence of 3 tokens in block 1."""
    held = BlockView(ref_count=1, num_written=3, key=None)
    empty = BlockView(ref_count=0, num_written=0, key=None)
    blocks = {1: held, 2: empty, 3: empty} | (blocks or {})
    group = GroupView(
        name="full",
        block_size=4,
        blocks=blocks,
        free_ids=free,
        findable=findable or {},
        pinned=(),
        num_free=len(free),
        num_held=sum(block.ref_count > 0 for block in blocks.values()),
        num_cached=0,
        first_visible=lambda position: 0,
    )
    one = SequenceView(
        seq_id=0,
        identity="one",
        tokens=(5, 6, 7),
        num_computed_tokens=computed,
        writing=range(0),
        tables={"full": TableView(block_ids=table, spare_ids=())},
    )
    return CacheView(groups=[group], sequences=[one] if living else [])


def _codes(view: CacheView, *, trimmed: bool = False) -> set[str]:
    return {broken.code for broken in of_view(view, 0, trimmed=trimmed)}


def test_a_sound_state_breaks_nothing() -> None:
    assert _codes(_view()) == set()


def test_each_break_has_the_code_of_its_rule() -> None:
    two = BlockView(ref_count=2, num_written=3, key=None)
    none = BlockView(ref_count=0, num_written=3, key=None)
    key = FindableView(key=b"k", expected_key=b"k", identity="one", tokens=(5, 6, 7))
    assert _codes(_view(living=False)) == {"KV401"}
    assert _codes(_view(free=(2,))) >= {"KV401"}
    assert _codes(_view(blocks={1: two})) == {"KV402"}
    assert _codes(_view(blocks={1: none}, free=(2, 3, 1))) == {"KV402", "KV403"}
    found = _view(blocks={1: BlockView(ref_count=1, num_written=3, key=b"k")}, findable={1: key})
    assert _codes(found) == {"KV404"}
    assert _codes(_view(table=(0,))) >= {"KV405"}
    assert _codes(_view(computed=4)) >= {"KV408"}
    assert _codes(_view(computed=4), trimmed=True) >= {"KV301"}


def _texts(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(law, text) of everything that a law yields, with 0 for each figure."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Yield) and isinstance(node.value, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "0" for part in node.value.values]
                    yield ("ownership" if function.name == "_unwritable" else function.name), "".join(map(str, parts))


def test_every_text_of_every_law_has_a_code_and_a_rule() -> None:
    from kvpact.doctor.breaks import _code

    texts = list(_texts(ast.parse(Path(laws.__file__).read_text(encoding="utf-8"))))
    assert {law for law, _ in texts} == {law.__name__ for law in laws.LAWS}
    codes = {_code(law, text, _view()) for law, text in texts}
    assert codes <= {rule.code for rule in all_rules()}
    assert {"KV401", "KV402", "KV403", "KV404", "KV405", "KV408", "KV410"} <= codes <= set(CODES)


STEP = StepView(name="a", group="full", start=2, positions=(2,), slots=(6,), table=(1,), read_length=3, block_size=4)


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ({}, None),
        ({"read_length": 4}, "KV408"),
        ({"slots": (7,)}, "KV409"),
        ({"table": (0,), "slots": (2,)}, "KV405"),
    ],
)
def test_what_kernels_are_told_is_held_against_the_lengths(step: dict[str, object], code: str | None) -> None:
    told = StepView(**(vars(STEP) | step))
    assert {broken.code for broken in of_steps([told], {"a": (5, 6, 7)}, None, 0)} == ({code} if code else set())


def test_two_writers_of_one_slot_overlap() -> None:
    other = StepView(**(vars(STEP) | {"name": "b"}))
    codes = {broken.code for broken in of_steps([STEP, other], {"a": (5, 6, 7), "b": (5, 6, 8)}, None, 0)}
    assert codes == {"KV410"}


def test_between_the_pieces_of_a_feed_blocks_may_move_and_after_the_last_they_may_not() -> None:
    """The state after both steps has block 1; the first step wrote to block 3, which its own table had."""
    earlier = StepView(**(vars(STEP) | {"start": 1, "positions": (1,), "slots": (13,), "table": (3,), "read_length": 2}))
    fed = {"a": (5, 6, 7)}
    assert list(of_steps([earlier, STEP], fed, _view(), 0)) == []
    assert {broken.code for broken in of_steps([STEP, earlier], fed, _view(), 0)} == {"KV409"}
    astray = StepView(**(vars(earlier) | {"slots": (14,)}))
    assert {broken.code for broken in of_steps([astray, STEP], fed, _view(), 0)} == {"KV409"}


def test_lives_run_once_for_all_rules_and_see_every_step() -> None:
    exam = Exam(Tiny())
    life = lives(exam)
    assert life is lives(exam)
    assert life.first == {}
    assert life.raised is None
    assert life.programs == len(list(programs(exam))) == 8


def test_a_finding_of_the_state_has_a_small_program_that_leaves_a_fresh_mark() -> None:
    """Earlier sessions have leaked too: what they left is not counted again, so the program is whole in itself."""
    report = examine(FAULTS[0].make(), select(["KV401"]))
    (result,) = [result for result in report.results if result.code == "KV401"]
    assert result.outcome is Outcome.FAILED
    finding = result.findings[0]
    assert finding.program is not None
    assert [type(step).__name__ for step in finding.program.steps] == ["Submit", "Advance", "Abort"]
    assert re.search(r"counts 1 holders, 0 hold it", finding.got)
    assert finding.where.block
