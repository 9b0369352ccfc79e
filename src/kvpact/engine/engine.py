"""The engine: requests in, outputs out, one step at a time. Single-threaded: one caller adds, steps and aborts."""

from __future__ import annotations

import secrets
import time

from kvpact.cache.manager import CacheManager
from kvpact.cache.prefix import Identity
from kvpact.config import EngineConfig
from kvpact.engine.admission import Admission, Limits
from kvpact.engine.batch import StepBatch, build
from kvpact.engine.gate import StepGate
from kvpact.engine.interrupt import Uninterrupted
from kvpact.engine.lifecycle import Clock, Lifecycle
from kvpact.engine.meter import PoolMeter
from kvpact.engine.outputs import EngineStats, RequestOutput
from kvpact.engine.pool import size_pool
from kvpact.engine.request import Prompt, Request, Status
from kvpact.engine.runner import Runner
from kvpact.engine.sampling import StepResult, sample_batch
from kvpact.engine.scheduler import Scheduler, StepPlan
from kvpact.engine.trace import CacheTrace, TraceSink
from kvpact.errors import DuplicateRequest, GateViolation
from kvpact.ids import RequestId
from kvpact.inject import InjectionPoints
from kvpact.kv.storage import KVStorage
from kvpact.model.decoder import Decoder
from kvpact.model.loader import DTYPES
from kvpact.model.tokenizer import Tokenizer
from kvpact.ops.base import Operators
from kvpact.params import SamplingParams


class Engine:
    """Continuous batching over one cache.

    `add` queues a request or refuses it; `step` moves every scheduled request on and returns what changed; `abort` ends one.
    inject: the engine's fault-injection points, for tests, the doctor and the cases. ops_name: the operators that compute.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        ops: Operators,
        config: EngineConfig,
        *,
        trace: TraceSink | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.ops_name = ops.name
        self.inject = InjectionPoints()
        dtype = decoder.dtype if config.kv_cache_dtype == "auto" else DTYPES[config.kv_cache_dtype]
        self.max_model_len = decoder.max_model_len
        self.spec = size_pool(config, decoder.layer_groups(), entry_bytes=dtype.itemsize, max_model_len=self.max_model_len)
        self.storage = KVStorage(self.spec, dtype, touch=config.pool_touch, layout=ops.layout)
        self.manager = CacheManager(
            self.spec,
            allocator=config.allocator,
            prefix_reuse=config.enable_prefix_caching,
            pool_reuse=config.pool_reuse,
            fork_sharing=config.fork_sharing,
            secret=secrets.token_bytes(32),
            inject=self.inject,
        )
        # The operators are part of the identity: entries that other kernels wrote are other bits.
        identity = Identity(model=f"{decoder.fingerprint}/{ops.identity}", kv_cache_dtype=str(dtype))
        limits = Limits(
            max_model_len=self.max_model_len,
            pool_tokens=(self.spec.num_blocks - 1) * self.spec.block_size,
            vocab_size=decoder.config.vocab_size,
        )
        self._admission = Admission(config, tokenizer, identity, limits)
        self._scheduler = Scheduler(config, self.manager)
        self._lifecycle = Lifecycle(self.manager, self._scheduler, tokenizer, clock, fork_sharing=config.fork_sharing)
        self._gate = StepGate(config.gate, decoder, self.spec, self.storage, self.manager.check)
        self._runner = Runner(decoder, ops, self.storage, config, self.inject, self._gate)
        self._trace = trace
        self._clock = clock
        self._requests: dict[RequestId, Request] = {}
        self._num_arrivals = 0
        self._meter = PoolMeter()

    def add(self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None, priority: int = 0) -> RequestId:
        """Queue a request. priority: lower runs first, under policy=priority. Raises a RequestError and changes nothing."""
        name = RequestId(request_id if request_id is not None else str(self._num_arrivals))
        if name in self._requests:
            raise DuplicateRequest(f"request {name!r} is still running", hint="give each request an id of its own, or none")
        request = self._admission.request(
            prompt,
            params or SamplingParams(),
            request_id=name,
            arrival=self._num_arrivals,
            priority=priority,
            now=self._clock(),
        )
        self._num_arrivals += 1
        self._lifecycle.open(request)
        self._requests[name] = request
        return name

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; its blocks are free at once. None if it is not running."""
        request = self._requests.get(RequestId(request_id))
        if request is None:
            return None
        with Uninterrupted():
            self._end(request, Status.FINISHED_ABORTED)
            return self._collect([request])[0]

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def stats(self) -> EngineStats:
        """Counts since the engine started."""
        usage = self.manager.usage()
        return EngineStats(
            num_steps=self._meter.num_steps,
            num_preemptions=self._scheduler.num_preemptions,
            pool_blocks=usage.total,
            block_bytes=self.spec.block_bytes(),
            peak_blocks=self._meter.peak_blocks,
            internal_waste=self._meter.internal_waste,
            copied_bytes=self._runner.copied_bytes,
            num_cached_tokens=usage.hit_tokens,
            num_growths=usage.growths,
            gate=self._gate.checks,
        )

    def step(self) -> list[RequestOutput]:
        """Schedule, build, run, sample, commit, emit. Returns each request that changed. Ctrl-C waits for its end."""
        with Uninterrupted():
            return self._step()

    def _step(self) -> list[RequestOutput]:
        expired = self._expire()
        plan = self._scheduler.schedule()
        results = self._compute(plan) if plan else []
        self._commit(plan, results)
        self._emit(results)
        return self._collect([*expired, *(result.choice.request for result in results if result.drawn)])

    def _compute(self, plan: StepPlan) -> list[StepResult]:
        """From plan to sampled tokens. If anything fails, the step's room is given back and no request has changed."""
        try:
            batch = build(plan, self.spec.groups, self.spec.block_size, self.inject)
            self._report(batch)
            logits = self._runner.run(batch)
            return sample_batch(batch, logits, self.tokenizer.token_text, self._gate.refused(batch))
        except BaseException:
            self._scheduler.rollback(plan, written=True)
            raise

    def _commit(self, plan: StepPlan, results: list[StepResult]) -> None:
        """Only now do lengths move and full blocks become findable, but for those of a choice that the gate refused."""
        refused = {result.choice for result in results if any(isinstance(drawn.error, GateViolation) for drawn in result.drawn)}
        for scheduled in plan:
            self.manager.commit(scheduled.reservation, publish=scheduled.choice not in refused)
            request = scheduled.choice.request
            if request.num_preemptions == 0:
                request.num_cached_tokens = max(request.num_cached_tokens, scheduled.choice.sequence.num_cached_tokens)
        self._meter.record(self.manager)

    def _emit(self, results: list[StepResult]) -> None:
        for result in results:
            self._lifecycle.apply(result)

    def _expire(self) -> list[Request]:
        now = self._clock()
        late = [request for request in self._requests.values() if request.deadline <= now]
        for request in late:
            self._end(request, Status.FINISHED_TIMEOUT)
        return late

    def _end(self, request: Request, status: Status) -> None:
        for choice in request.choices:
            if not choice.status.finished:
                self._lifecycle.finish(choice, status)

    def _collect(self, requests: list[Request]) -> list[RequestOutput]:
        """Outputs of the requests that changed; finished ones are forgotten."""
        for request in requests:
            if request.finished:
                self._requests.pop(request.request_id, None)
        return [request.output() for request in requests]

    def _report(self, batch: StepBatch) -> None:
        if self._trace is None:
            return
        for group in self.spec.groups:
            keys = self.storage.layer(group.layers[0]).keys
            for row, scheduled in enumerate(batch.plan):
                self._trace(
                    CacheTrace(
                        step=self._meter.num_steps,
                        request_id=scheduled.choice.request.request_id,
                        choice=scheduled.choice.index,
                        group=group.name,
                        start=scheduled.start,
                        stop=scheduled.stop,
                        seq_len=int(batch.arrays.seq_lens[row]),
                        block_ids=tuple(scheduled.choice.sequence.block_table(group.name)),
                        shape=tuple(keys.shape),
                        data_ptr=keys.data_ptr(),
                    )
                )
