"""kvpact and its peers, alternately in one run, on the same weights and prompts; one section a suite in docs/benchmarks.md.

Every engine is a process of its own, loaded once and warmed up; kvpact runs right before each of the others (with --quick, before
every second one), and the ratio is taken pair by pair. While one computes, the others are stopped. An engine that can't be had is
skipped with the reason.

  python benchmarks/peers/compare.py                          every suite, every engine
  python benchmarks/peers/compare.py --quick                  short budgets, the slowest left out: about 15 minutes
  python benchmarks/peers/compare.py --suite mixed short      some suites
  python benchmarks/peers/compare.py --engine openvino        kvpact against one
  python benchmarks/peers/compare.py --suite mixed --dry      print the section, write nothing
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import BASE, ENGINES, Unavailable
from fresh import FRESH
from report import REPORT, section, write_section
from rounds import Crew, Plan, play
from worker import WorkerDied
from workloads import SUITES, Suite, Text


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", nargs="+", choices=[*SUITES, *FRESH], default=[*SUITES, *FRESH], metavar="NAME", help=_names())
    parser.add_argument("--engine", nargs="+", choices=list(ENGINES), metavar="NAME", help=f"of {', '.join(ENGINES)}; default: the suite's")
    parser.add_argument("--quick", action="store_true", help="the suites' short budgets")
    parser.add_argument("--rounds", type=int, help="runs of each pair, at most; default: the suite's")
    parser.add_argument("--budget", type=float, help="seconds of generating per suite; default: the suite's")
    parser.add_argument("--total", type=float, help="seconds after which no further suite begins")
    parser.add_argument("--max-tokens", type=int, help="tokens out, to try things; nothing is written then")
    parser.add_argument(
        "--out", type=Path, default=REPORT, help="the report, of which each suite's section is replaced; default: docs/benchmarks.md"
    )
    parser.add_argument("--dry", action="store_true", help="print the sections, write nothing")
    args = parser.parse_args(arguments)
    args.dry = args.dry or args.max_tokens is not None
    return args


def _names() -> str:
    return f"of {', '.join([*SUITES, *FRESH])}; default: all"


def run_suite(name: str, suite: Suite, crew: Crew, text: Text, args: argparse.Namespace) -> str:
    """The suite's section as Markdown."""
    asked = args.engine if args.engine and not suite.own else suite.engines
    left_out = suite.slow if args.quick and asked is suite.engines else ()
    chosen = [engine for engine in asked if engine != BASE and engine not in left_out]
    plan = Plan(
        max_tokens=args.max_tokens or suite.max_tokens,
        rounds=args.rounds or suite.rounds,
        budget=args.budget or (suite.quick if args.quick else suite.budget),
        group=2 if args.quick else 1,
    )
    outcome = play(crew, chosen, lambda seed: suite.prompts(text, f"{name}/{seed}"), plan)
    for engine in left_out:
        outcome.skip(engine, "left out by --quick")
    return section(name, suite.title, suite.about, outcome)


def main() -> int:
    args = parse()
    text = Text()
    begin = time.monotonic()
    failed = []
    with Crew(ENGINES) as crew:
        for name in args.suite:
            late = args.total is not None and time.monotonic() - begin > args.total
            print(f"== {name}: left out, {args.total:.0f} s are over" if late else f"== {name}", flush=True)
            if late:
                continue
            try:
                body = FRESH[name](text, args.quick) if name in FRESH else run_suite(name, SUITES[name], crew, text, args)
            except (Unavailable, WorkerDied) as error:
                failed.append(name)
                print(f"{name}: kvpact itself failed: {error}", file=sys.stderr, flush=True)
                continue
            print(body)
            if not args.dry:
                write_section(args.out, name, body)
            print(f"== {name} done, {time.monotonic() - begin:.0f} s since the start", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
