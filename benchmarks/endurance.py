"""Seven million messages through one connection: does memory grow?

python -m benchmarks.endurance [--messages 7000000]
"""

import argparse
import shutil
import tempfile
import threading
from pathlib import Path

import psutil

from benchmarks.__main__ import h2load
from benchmarks.machine import describe_machine
from tests.support.broker_process import BrokerProcess

MIB = 2**20
SAMPLE_SECONDS = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance")
    parser.add_argument("--messages", type=int, default=7_000_000)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    samples: list[float] = []
    done = threading.Event()
    with BrokerProcess(directory / "data", engine="http2") as broker:
        process = psutil.Process(broker.pid)

        def sample() -> None:
            while not done.wait(SAMPLE_SECONDS):
                samples.append(process.memory_info().rss / MIB)

        sampling = threading.Thread(target=sample)
        sampling.start()
        rate = h2load(broker, arguments.messages, 256, reliable=False)
        done.set()
        sampling.join()
        broker.terminate()
    shutil.rmtree(directory)
    tenth = max(1, len(samples) // 10)
    early, late = (sum(part) / tenth for part in (samples[tenth : 2 * tenth], samples[-tenth:]))
    print(f"{arguments.messages:,} messages of 1 KiB, one connection; {describe_machine()}")
    print(
        f"rate {rate:,.0f} msg/s; memory after a tenth {early:.1f} MiB, at the end {late:.1f} MiB"
    )


if __name__ == "__main__":
    main()
