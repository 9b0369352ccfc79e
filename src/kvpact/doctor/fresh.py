"""Tokens that were not sent before, for targets that nothing keeps from hits."""

from __future__ import annotations

from kvpact.doctor.exam import Exam

#: Those that KV001 measures with.
_MEASURED = 3


class Fresh:
    """Tokens that were not sent before, not by an earlier examination either, but for chance."""

    def __init__(self, exam: Exam) -> None:
        self._draw = exam.random(f"first sent {exam.target.nonce}")
        self._ids = range(min(8, exam.num_ids // 4), exam.num_ids)
        self._firsts = list(exam.held_back[_MEASURED:])
        self._draw.shuffle(self._firsts)

    def tokens(self, length: int) -> tuple[int, ...]:
        return tuple(self._draw.choice(self._ids) for _ in range(length))

    def firsts(self, count: int) -> list[int]:
        """Different tokens that began no earlier prompt, as long as there are such: a cache of single tokens finds nothing of them."""
        if len(self._firsts) < count:
            return self.different(count)
        taken, self._firsts = self._firsts[:count], self._firsts[count:]
        return taken

    def different(self, count: int) -> list[int]:
        return self._draw.sample(self._ids, count)

    def shuffled(self, count: int) -> list[int]:
        """0 to count - 1 in an order by chance."""
        return self._draw.sample(range(count), count)
