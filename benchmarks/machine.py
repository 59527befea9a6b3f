"""What the figures were measured on."""

import datetime

from pydanube.bench import machine


def describe_machine() -> str:
    """One line for the head of every table of figures."""
    return f"{machine.describe_machine()}, {datetime.date.today().isoformat()}"
