"""Prints what the doctor says of each held-out engine, and the score: `PYTHONPATH=tests/support python -m heldout`."""

from __future__ import annotations

from heldout.catalogue import FAULTY, HEALTHY
from heldout.score import examined


def main() -> None:
    found = named = alarms = 0
    for each in FAULTY:
        seen = examined(each)
        found, named = found + seen.found, named + seen.named
        print(f"{'named' if seen.named else 'found' if seen.found else 'missed':7} {each.name:30} {' '.join(seen.leading)}", flush=True)
    for each in HEALTHY:
        seen = examined(each)
        alarms += bool(seen.leading or seen.broken)
        print(
            f"{'ALARM' if seen.leading or seen.broken else 'healthy':7} {each.name:30} {' '.join((*seen.leading, *seen.broken))}",
            flush=True,
        )
    print(f"{found} of {len(FAULTY)} held-out faults found, {named} named right, {alarms} of {len(HEALTHY)} healthy engines disturbed")


if __name__ == "__main__":
    main()
