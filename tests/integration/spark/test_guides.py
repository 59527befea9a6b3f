"""The snippets of the Spark guides, run as one program by a reader who copies them in order."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from pydanube.spark.options import Access
from pydanube.spark.registry import ask
from tests.support.spark_topics import Topics

GUIDES = ("docs/guides/spark.md", "docs/guides/replay.md")
SECONDS_MAX = 280
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "amount": {"type": "number"}},
}
END = """
query.processAllAvailable()
query.stop()
spark.stop()
"""


def snippets(page: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", Path(page).read_text(), re.S | re.M))


def test_the_snippets_run_in_their_order(broker, topics: Topics, tmp_path: Path):
    topics.publish("/default/orders", range(200))
    ask(Access(urls=(broker.url,)), lambda schemas: schemas.register("orders", json.dumps(SCHEMA)))
    program = "\n".join([*(snippets(page) for page in GUIDES), END])
    assert program.count("pydanube.spark.") >= 4
    for place in ("/var/lib/danube/checkpoints", "/tmp/lake"):
        assert place in program
        program = program.replace(place, str(tmp_path / place.rpartition("/")[2]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "DANUBE_SERVICE_URL": broker.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    # The messages are from 1970: the stream has sent them on, the batch of seven days is empty.
    assert topics.frontier("/default/bills") == 200
    assert (tmp_path / "lake" / "orders" / "_delta_log").is_dir()
