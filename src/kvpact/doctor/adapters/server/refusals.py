"""Why a server shows no log-probabilities: it offers none, or it broke, or nobody is there."""

from __future__ import annotations

from collections.abc import Mapping

from kvpact.doctor.errors import BrokeOff, TargetFailed, TargetUnusable


def mute(reasons: Mapping[str, TargetFailed]) -> TargetUnusable:
    """reasons: by the way of asking. What all came to is said once."""
    broke = [error.hint for error in reasons.values() if isinstance(error, BrokeOff)]
    hint = broke[0] if broke else "does it offer logprobs at all?"
    same = {error.message for error in reasons.values()}
    if len(same) == 1:
        return TargetUnusable(f"none of {len(reasons)} ways to ask this server for log-probabilities is served: {same.pop()}", hint=hint)
    told = "; ".join(f"{way}: {error.message}" for way, error in reasons.items())
    return TargetUnusable(f"no way to ask this server for log-probabilities. {told}", hint=hint)
