"""`danube run`: an app of typed handlers, until it is told to stop."""

import sys
from importlib import import_module

import click

from pydanube.errors import InvalidRequest, NotFound


@click.command(name="run")
@click.argument("app", metavar="MODULE:APP")
@click.option("--app-dir", default=".", show_default=True, help="Directory to find the module in.")
def command(app: str, app_dir: str) -> None:
    """Run the handlers of a pydanube.App until SIGTERM or Ctrl-C."""
    from pydanube.client.app import App  # Here, so that --help loads no client.
    from pydanube.observability.logging import log_to_stderr

    module_name, _, attribute = app.partition(":")
    if not (module_name and attribute):
        raise InvalidRequest(f"{app!r} names no app: write MODULE:APP, such as shop.orders:app")
    sys.path.insert(0, app_dir)
    try:
        found = getattr(import_module(module_name), attribute, None)
    except ModuleNotFoundError as error:
        raise NotFound(f"{error}; is --app-dir right?") from error
    if not isinstance(found, App):
        raise InvalidRequest(f"{attribute} in {module_name} is no pydanube.App")
    log_to_stderr()
    found.run()
