"""The end of a Spark session, without tracebacks of processes that have nothing more to do."""

import contextlib
from typing import TYPE_CHECKING

from pydanube.runtime.descendants import end_descendants
from pydanube.spark.connect import is_connected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHON_PROCESSES = "pyspark.daemon"
_JAVA = "org.apache.spark.deploy.SparkSubmit"
_PATIENCE_SECONDS = 5.0


def stop_session(spark: "SparkSession") -> None:
    """Stop Spark, and ahead of it the Python processes that wait for tasks.

    Java closes their connections before it ends them, and some find the time to print a traceback
    about that. While something runs they are left to Java: it would report the tasks they drop.
    """
    if not is_connected(spark) and not _is_busy(spark):
        end_descendants(_PYTHON_PROCESSES, _PATIENCE_SECONDS)
    spark.stop()


def cut_off_session() -> None:
    """End local Spark without a word to it: a call to it was cut off, and it takes no other."""
    end_descendants(_JAVA, _PATIENCE_SECONDS)


def _is_busy(spark: "SparkSession") -> bool:
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        jobs = spark.sparkContext.statusTracker().getActiveJobsIds()
        return bool(jobs or spark.streams.active)
    return True  # Java itself has gone.
