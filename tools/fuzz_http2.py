"""Feeds random conversations and noise to the HTTP/2 codecs, judged by h2.

python tools/fuzz_http2.py --inputs 1000000            a third judged, a third each to either end
python tools/fuzz_http2.py --inputs 1 --first 4711     one seed again

Ends with exit code 1 at the first input that breaks a law, and prints its seed.
"""

import argparse
import importlib
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Run the inputs that were asked for; return the exit code."""
    parser = argparse.ArgumentParser(description="Fuzz the HTTP/2 codecs.")
    parser.add_argument("--inputs", type=int, default=30_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT))
    judge = importlib.import_module("tests.support.http2_judge")
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for number in range(options.inputs):
        seed = options.first + number // 3
        kind = ("judged", "noise to a server", "noise to a client")[number % 3]
        try:
            problem = run_one(judge, kind, seed, counts)
        except Exception as error:  # noqa: BLE001 - Whatever it is, the seed is what matters.
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            print(f"seed {seed}, {kind}: {problem}")
            return 1
        counts[kind] += 1
        if (number + 1) % max(1, options.inputs // 20) == 0:
            print(f"{number + 1} inputs in {time.monotonic() - started:.0f} s", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:>9}  {name}")
    return 0


def run_one(judge: ModuleType, kind: str, seed: int, counts: Counter[str]) -> str | None:
    """Run one input; return what is wrong."""
    if kind == "noise to a server":
        judge.run_noise(seed)
        return None
    if kind == "noise to a client":
        judge.run_client_noise(seed)
        return None
    outcome = judge.run(seed)
    if outcome.difference is None:
        counts["judged: both object" if outcome.ours else "judged: both accept"] += 1
        return None
    counts[f"judged: {outcome.difference}"] += 1
    known = outcome.difference in judge.DIFFERENCES
    return None if known else str(outcome.difference)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
