"""Spark's own programs with the settings of `session`: the shell, and scripts to submit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydanube.errors import InvalidRequest, NotSupported
from pydanube.spark.sessions import SETTINGS, environment_for

DEFAULT_MASTER = "local[*,4]"


class Launch(NamedTuple):
    """What to run, and in which environment."""

    command: list[str]
    environment: dict[str, str]


def launch(
    program: Literal["pyspark", "spark-submit"],
    environment: Mapping[str, str],
    *,
    master: str = DEFAULT_MASTER,
    conf: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Launch:
    """Return how one of Spark's programs is started; `conf` (name=value) wins over our settings."""
    try:
        import pyspark
    except ImportError as error:
        raise NotSupported("PySpark is not installed: pip install 'pydanube[spark]'") from error
    settings = {**SETTINGS, **dict(_setting(each) for each in conf)}
    home = Path(pyspark.__file__).parent
    flags = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return Launch(
        [str(home / "bin" / program), "--master", master, *flags, *arguments],
        # Another Spark that the environment names would not be the one whose settings these are.
        {**environment, **environment_for(master, environment), "SPARK_HOME": str(home)},
    )


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise InvalidRequest(f"{text!r} is no setting; write it as spark.name=value")
    return name, value
