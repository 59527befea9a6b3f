import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pydanube.model.arrow import without
if sys.argv[1] == "broker":
    with without("numpy", "pandas"):
        import pydanube.broker.server
    assert "numpy" not in sys.modules
else:
    import pydanube.client
from pydanube.model.batch import Batch
from pydanube.model.message import Message
batch = Batch.gather([Message(payload=b"x", publish_time_ms=1, producer_name="p")])
assert "pandas" not in sys.modules
if sys.argv[1] == "broker":
    assert batch.messages(0, 1)[0].payload == b"x"
    sys.exit()
import pandas
frame = batch.record_batch().to_pandas()
assert isinstance(frame, pandas.DataFrame)
assert frame["payload"].tolist() == [b"x"]
import pyarrow
assert pyarrow.array(pandas.Series([1, 2])).to_pylist() == [1, 2]
"""


@pytest.mark.parametrize("process", ["broker", "client"])
def test_neither_broker_nor_client_load_pandas_and_who_wants_it_gets_it(process):
    subprocess.run([sys.executable, "-c", PROGRAM, process], check=True, timeout=60)
