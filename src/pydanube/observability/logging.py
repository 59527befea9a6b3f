"""Logs of the server: an event in plain words, and facts beside it as named fields.

Records travel through the standard library, so a program that runs a broker inside itself sees
them in its own handlers. `log_to_stderr` gives the `danube` command its handler, as text or JSON.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

ROOT = "pydanube"

_SECRET_WORDS = ("secret", "token", "password", "authorization", "api_key", "access_key")
_HIDDEN = "***"
_FIELDS = "danube_fields"


class Logger:
    """Writes under one name. Below the level in force, a call costs next to nothing."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        """Write what only a developer wants to know."""
        self._write(logging.DEBUG, event, None, fields)

    def info(self, event: str, **fields: object) -> None:
        """Write what an operator may want to know."""
        self._write(logging.INFO, event, None, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Write what an operator should look at."""
        self._write(logging.WARNING, event, None, fields)

    def error(self, event: str, *, error: BaseException | None = None, **fields: object) -> None:
        """Write what an operator must act upon; `error` is shown with its traceback."""
        self._write(logging.ERROR, event, error, fields)

    def exception(self, event: str, **fields: object) -> None:
        """Write an error with the traceback of the exception being handled."""
        self._write(logging.ERROR, event, sys.exception(), fields)

    def _write(
        self, level: int, event: str, error: BaseException | None, fields: Mapping[str, object]
    ) -> None:
        if self._logger.isEnabledFor(level):
            shown = {name: _shown(name, value) for name, value in fields.items()}
            text = " ".join([event, *(f"{name}={value}" for name, value in shown.items())])
            # Passed as an argument, so that a % in a value is not taken for a format.
            self._logger.log(
                level, "%s", text, exc_info=error, extra={_FIELDS: {"event": event, **shown}}
            )


def get_logger(name: str) -> Logger:
    """Return the logger of a module; costs nothing until something is written."""
    return Logger(name)


def log_to_stderr(
    level: LogLevel = "info", style: LogFormat = "text", stream: TextIO | None = None
) -> logging.Handler:
    """Show the records of PyDanube, and the warnings of everybody else, on standard error.

    Once per process, by the program that owns it; a second call replaces the first.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_formatter(style))
    root = logging.getLogger()
    for former in [h for h in root.handlers if getattr(h, "danube", False)]:
        root.removeHandler(former)
    handler.danube = True  # type: ignore[attr-defined]  # A mark of ours on a foreign class.
    root.addHandler(handler)
    logging.getLogger(ROOT).setLevel(level.upper())
    return handler


def _formatter(style: LogFormat) -> logging.Formatter:
    # Here, because structlog takes a sixth of a second to import, and clients never need it.
    import structlog

    renderer: Any
    if style == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            _spread_fields,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )


def _spread_fields(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Turn the fields that travelled beside a record back into fields."""
    fields = getattr(event.get("_record"), _FIELDS, None)
    if fields is not None:
        event.update(fields)
    return event


def _shown(name: str, value: object) -> object:
    if any(word in name.lower() for word in _SECRET_WORDS):
        return _HIDDEN
    return value if isinstance(value, int | float | bool | None) else str(value)
