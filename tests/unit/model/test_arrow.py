import subprocess
import sys

PROGRAM = """
import sys
import pydanube.broker.server, pydanube.client
from pydanube.model.batch import Batch
from pydanube.model.message import Message
batch = Batch.gather([Message(payload=b"x", publish_time_ms=1, producer_name="p")])
assert "pandas" not in sys.modules
import pandas
frame = batch.record_batch().to_pandas()
assert isinstance(frame, pandas.DataFrame)
assert frame["payload"].tolist() == [b"x"]
import pyarrow
assert pyarrow.array(pandas.Series([1, 2])).to_pylist() == [1, 2]
"""


def test_neither_broker_nor_client_load_pandas_and_who_wants_it_gets_it():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
