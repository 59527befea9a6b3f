"""Fetches what Debian stable does not have: Kafka's jars, by Maven, into the benchmark's cache.

    python -m benchmarks.peers.install

The other servers come from Debian: redis-server, nats-server (2.10 or newer for sync-always) and
rabbitmq-server. None of them needs to run as a service.
"""

import subprocess
import tempfile
from pathlib import Path

from benchmarks.peers.programs import CACHE

KAFKA = "4.0.0"
PROJECT = """
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmark</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def main() -> None:
    target = CACHE / "kafka"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pom.xml").write_text(PROJECT.format(version=KAFKA))
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        subprocess.run(["mvn", "-q", "-B", *copy], cwd=directory, check=True, timeout=600)
    print(f"{len(list(target.glob('*.jar')))} jars in {target}")


if __name__ == "__main__":
    main()
