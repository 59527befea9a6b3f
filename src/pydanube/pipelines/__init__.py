"""Data pipelines on Spark: sources, steps and sinks, from a YAML file or from Python.

The names below are the public ones; each is loaded when it is used. They need the extra `spark`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydanube.pipelines.api import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pydanube.pipelines' has no attribute {name!r}")
    return getattr(import_module("pydanube.pipelines.api"), name)
