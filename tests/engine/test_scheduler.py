"""The scheduler without a model: literal plans and literal block ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvpact.cache.manager import CacheManager
from kvpact.cache.prefix import Identity
from kvpact.cache.spec import CacheSpec, GroupKind, LayerGroup
from kvpact.config import EngineConfig
from kvpact.engine.detokenize import IncrementalDetokenizer
from kvpact.engine.engine import Engine
from kvpact.engine.request import Choice, Request, Status
from kvpact.engine.scheduler import Scheduler
from kvpact.ids import RequestId, TokenId
from kvpact.inject import InjectionPoints
from kvpact.params import SamplingParams
from kvpact.visibility import Visibility
from runs import prompt
from tiny_models import byte_tokenizer

MakeEngine = Callable[..., Engine]
IDENTITY = Identity(model="m", kv_cache_dtype="float32")


class World:
    """A scheduler over a pool of `num_blocks` usable blocks of 4 tokens."""

    def __init__(self, num_blocks: int, *, allocator: str = "paged", **options: object) -> None:
        group = LayerGroup(name="full", kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=1, visibility=Visibility())
        spec = CacheSpec(groups=(group,), block_size=4, num_blocks=num_blocks + 1, entry_bytes=4)
        self.manager = CacheManager(spec, allocator=allocator, secret=b"s", inject=InjectionPoints())
        self.scheduler = Scheduler(EngineConfig(block_size=4, **options), self.manager)
        self.count = 0

    def add(self, num_tokens: int, *, max_tokens: int = 8, priority: int = 0, n: int = 1) -> Choice:
        prompt = tuple(TokenId(100 * self.count + i) for i in range(num_tokens))
        request = Request(
            request_id=RequestId(str(self.count)),
            arrival=self.count,
            prompt=None,
            prompt_token_ids=prompt,
            identity=IDENTITY,
            params=SamplingParams(n=n),
            seed=0,
            priority=priority,
            stop_ids=frozenset(),
            max_total_tokens=num_tokens + max_tokens,
            arrival_time=0.0,
        )
        detokenizer = IncrementalDetokenizer(byte_tokenizer(), skip_special_tokens=True, stop=(), include_stop=False, min_tokens=0)
        choice = Choice(request=request, index=0, sequence=self.manager.open(prompt, IDENTITY), detokenizer=detokenizer)
        request.choices.append(choice)
        self.scheduler.enqueue(choice)
        self.count += 1
        return choice

    def step(self) -> list[tuple[str, int, int]]:
        """Schedule and commit; a complete choice gets a token. Returns (request, start, stop) of each."""
        plan = self.scheduler.schedule()
        for scheduled in plan:
            self.manager.commit(scheduled.reservation)
        for scheduled in plan:
            if scheduled.stop == scheduled.choice.sequence.num_tokens:
                scheduled.choice.sequence.append(TokenId(7))
        self.manager.check()
        return [(scheduled.choice.request.request_id, scheduled.start, scheduled.stop) for scheduled in plan]


def test_running_choices_come_first_and_waiting_prompts_share_what_is_left_of_the_budget() -> None:
    world = World(16, max_num_batched_tokens=8, max_num_seqs=4)
    world.add(6)
    world.add(6)
    assert world.step() == [("0", 0, 6), ("1", 0, 2)]
    assert world.step() == [("0", 6, 7), ("1", 2, 6)]
    assert world.step() == [("0", 7, 8), ("1", 6, 7)]


def test_a_chunk_is_never_longer_than_its_switch_allows() -> None:
    world = World(16, long_prefill_token_threshold=3)
    world.add(7)
    assert [world.step() for _ in range(3)] == [[("0", 0, 3)], [("0", 3, 6)], [("0", 6, 7)]]


def test_without_chunking_a_prompt_runs_whole_even_above_the_budget_and_the_next_one_waits() -> None:
    world = World(16, max_num_batched_tokens=4, max_num_seqs=4, enable_chunked_prefill=False)
    world.add(6)
    world.add(3)
    assert world.step() == [("0", 0, 6)]
    assert world.step() == [("0", 6, 7), ("1", 0, 3)]


def test_without_batching_a_request_runs_to_its_end_before_the_next_starts() -> None:
    world = World(16, batching=False)
    first = world.add(3)
    world.add(3)
    assert world.step() == [("0", 0, 3)]
    assert world.step() == [("0", 3, 4)]
    world.scheduler.remove(first)
    first.sequence.release()
    assert world.step() == [("1", 0, 3)]


def test_a_full_pool_preempts_the_newest_and_resumes_it_when_there_is_room() -> None:
    world = World(3)
    first, second = world.add(4), world.add(4)
    assert world.step() == [("0", 0, 4), ("1", 0, 4)]
    assert list(first.sequence.block_table("full")) == [1]
    assert list(second.sequence.block_table("full")) == [2]
    assert world.step() == [("0", 4, 5)]
    assert second.status is Status.PREEMPTED
    assert second.request.num_preemptions == world.scheduler.num_preemptions == 1
    assert list(second.sequence.block_table("full")) == []
    assert second.sequence.num_tokens == 5
    world.scheduler.remove(first)
    first.sequence.release()
    # Block 2 is findable still: the resumed choice takes its own four tokens back as a hit.
    assert world.step() == [("1", 4, 5)]
    assert second.status is Status.RUNNING


def test_without_preemption_only_what_fits_to_its_end_is_admitted() -> None:
    world = World(3, preemption="off")
    first = world.add(4, max_tokens=4)
    world.add(4, max_tokens=4)
    assert [world.step() for _ in range(4)] == [[("0", 0, 4)], [("0", 4, 5)], [("0", 5, 6)], [("0", 6, 7)]]
    world.scheduler.remove(first)
    first.sequence.release()
    assert world.step() == [("1", 0, 4)]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", ["0", "1", "2"]), ("priority", ["2", "0", "1"])])
def test_the_policy_decides_who_runs_first(policy: str, order: list[str]) -> None:
    world = World(16, scheduling_policy=policy, max_num_batched_tokens=4, max_num_seqs=4)
    for priority in (1, 1, 0):
        world.add(4, priority=priority)
    first_steps = [world.scheduler.schedule()]
    assert first_steps[0][0].choice.request.request_id == order[0]
    for scheduled in first_steps[0]:
        world.manager.commit(scheduled.reservation)
    started = [order[0]]
    while len(started) < 3:
        for request_id, start, _ in world.step():
            if start == 0 and request_id not in started:
                started.append(request_id)
    assert started == order


def test_a_choice_that_will_be_forked_takes_the_seats_of_all_its_forks() -> None:
    world = World(16, max_num_seqs=4)
    world.add(4, n=3)
    world.add(4, n=2)
    assert world.step() == [("0", 0, 4)]


def test_rolling_a_step_back_leaves_the_pool_and_the_queues_as_they_were() -> None:
    world = World(8)
    running = world.add(5)
    world.step()
    waiting = world.add(5)
    before = (world.manager.usage(), list(running.sequence.block_table("full")), running.sequence.num_computed_tokens)
    plan = world.scheduler.schedule()
    assert len(plan) == 2
    world.scheduler.rollback(plan, written=False)
    assert (world.manager.usage(), list(running.sequence.block_table("full")), running.sequence.num_computed_tokens) == before
    assert waiting.status is Status.WAITING
    assert world.scheduler.num_waiting == 1
    world.manager.check()
    assert world.step() == [("0", 5, 6), ("1", 0, 5)]


def test_a_region_that_does_not_fit_beside_its_own_hit_is_computed_without_the_hit() -> None:
    """The blocks of a hit are held while they are copied: of 4 blocks, 2 are hit and 3 are needed in a row."""
    world = World(4, allocator="contiguous")
    first = world.add(9, max_tokens=1)
    world.step()
    world.scheduler.remove(first)
    first.sequence.release()
    world.count = 0  # the same tokens again
    again = world.add(9, max_tokens=1)
    assert world.manager.lookup(again.sequence).num_tokens == 8
    assert world.step() == [("0", 0, 9)]


def test_a_crowd_that_comes_again_is_answered_in_small_chunks_too(make_engine: MakeEngine) -> None:
    """docs/cases/a-region-in-its-own-way.md: sized for its chunk, the oldest one's region was laid again where it could not grow."""
    switches = ("allocator=contiguous", "chunk=2", "block_size=16")
    block_bytes = make_engine("llama", *switches).spec.block_bytes()
    engine = make_engine("llama", *switches, kv_cache_memory=9 * block_bytes)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompts = [prompt(95), prompt(15, 1), prompt(95, 2)]
    for _ in range(3):
        for one in prompts:
            engine.add({"prompt_token_ids": one}, params)
        finished, steps = 0, 0
        while finished < len(prompts):
            finished += sum(output.finished for output in engine.step())
            steps += 1
            assert steps < 400, "the requests wait for each other"
