"""What a target is probed with: token ids and lengths, drawn from a seed."""

from __future__ import annotations

from random import Random

from kvpact.doctor.target import Capability, Target

#: Ids that are held back at most: more are not used up in one examination.
_MOST_HELD = 512


class Probes:
    """seed: of every draw."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self.seed = seed

    def random(self, purpose: str) -> Random:
        """Draws that depend on the seed and the purpose alone: a rule gives the same probes whichever rules ran before."""
        return Random(f"{self.seed}/{purpose}")

    @property
    def num_ids(self) -> int:
        """Programs draw ids below this. Those of the glass checkpoint beyond its input tokens are outputs: nothing can be seen of them."""
        return self._known - len(self.held_back)

    @property
    def held_back(self) -> range:
        """Ids for prompts that must share no beginning with any other, where a hit is kept from by nothing else."""
        held = min(self._known // 2, _MOST_HELD) if self.target.can(Capability.RESENT) else 0
        return range(self._known - held, self._known)

    @property
    def _known(self) -> int:
        form = self.target.form
        return self.target.vocab_size if form is None else min(form.num_tokens, self.target.vocab_size)

    def tokens(self, purpose: str, length: int) -> tuple[int, ...]:
        """Random token ids; the lowest ids are often special ones, and left out where the vocabulary allows."""
        draw = self.random(purpose)
        first = min(8, self.num_ids // 4)
        return tuple(draw.randrange(first, self.num_ids) for _ in range(length))

    def unshared(self, purpose: str, length: int, place: int) -> tuple[int, ...]:
        """The same behind a first token that no other prompt has, where ids are held back for that; place: among such prompts."""
        tokens = self.tokens(purpose, length)
        return (self.held_back[place], *tokens[1:]) if place < len(self.held_back) else tokens

    def other_token(self, token: int, purpose: str = "") -> int:
        """A different id."""
        draw = self.random(f"other {token} {purpose}")
        first = min(8, self.num_ids // 4)
        return next(t for t in iter(lambda: draw.randrange(first, self.num_ids), None) if t != token)

    def length(self, wanted: int) -> int:
        """As near to `wanted` as the target's longest context allows, with room for a few more."""
        return max(1, min(wanted, self.target.max_len - 8))

    def edges(self) -> list[int]:
        """Prompt lengths around which faults are likely: one, a residue of 32, what eight bits of a number count to (bfloat16 has no more),
        the block size and the window with their neighbours."""
        wanted = {1, 2, 31, 33, 254}
        for edge in (self.target.block_size, self.target.window):
            if edge:
                wanted |= {edge - 1, edge, edge + 1, edge + 2}
        longest = min(self.target.max_len - 16, 600)
        return sorted(length for length in wanted if 1 <= length <= longest)
