"""What the figures were measured on."""

import datetime
import os
import platform

import psutil


def describe_machine() -> str:
    """One line for the head of every table of figures."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {datetime.date.today().isoformat()}"
    )
