"""Flows seen from outside, by what lies beside their checkpoints: status, and asking to stop."""

from msgspec import structs

from pydanube.errors import NotFound, Unavailable
from pydanube.pipelines.announcing import announced
from pydanube.pipelines.flow_files import FlowFiles, known_flows
from pydanube.pipelines.graph import REJECTED
from pydanube.pipelines.reports import FlowStatus
from pydanube.runtime.blocking import pause
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.spark.brokers import Patience
from pydanube.spark.options import Access

_LOOK_EVERY_SECONDS = 0.1
_ASK_TIMEOUT_MS = 5_000
_RUNNING = ("STARTING", "RUNNING", "RESTARTING")


def statuses(checkpoints: str, pipeline: str | None = None) -> list[FlowStatus]:
    """Return how flows did when they last said so; a flow nobody runs any more is STOPPED."""
    found = []
    for name, flow in known_flows(checkpoints):
        if pipeline not in (None, name):
            continue
        files = FlowFiles(checkpoints, name, flow)
        status = files.status()
        assert status is not None, "it was listed by its status"
        if status.state in _RUNNING and not files.is_held:
            words = "its process ended without a word; `danube pipeline run` goes on from there"
            status = structs.replace(status, state="STOPPED", error=words)
        found.append(status)
    if pipeline is not None and not found:
        raise NotFound(f"no flow of {pipeline} has run over {checkpoints}")
    return found


def known_statuses(
    checkpoints: str | None,
    url: str | None,
    pipeline: str | None = None,
    clock: Clock | None = None,
) -> list[FlowStatus]:
    """Return flows known from a directory of checkpoints, and those a broker was told of.

    Where both know a flow, the directory does: it sees whether anybody runs it.
    """
    found = {} if checkpoints is None else _by_name(statuses(checkpoints))
    if url is not None:
        access = Access(urls=tuple(url.split(",")), request_timeout_ms=_ASK_TIMEOUT_MS)
        patience = Patience(give_up_seconds=_ASK_TIMEOUT_MS / 1000)
        now_ms = (clock or SystemClock()).now_ms()
        found = {**_by_name(announced(access, now_ms, patience)), **found}
    chosen = [found[each] for each in sorted(found) if pipeline in (None, found[each].pipeline)]
    if pipeline is not None and not chosen:
        places = " and ".join(each for each in (checkpoints, url) if each is not None)
        raise NotFound(f"no flow of {pipeline} is known to {places}")
    return chosen


def _by_name(found: list[FlowStatus]) -> dict[str, FlowStatus]:
    return {f"{each.pipeline}/{each.flow}": each for each in found}


def stop_flows(
    checkpoints: str,
    pipeline: str,
    flow: str | None = None,
    *,
    now: bool = False,
    seconds_max: float = 60.0,
    clock: Clock | None = None,
) -> list[FlowStatus]:
    """Ask the flows of a pipeline to stop, and wait until nobody runs them."""
    clock = clock or SystemClock()
    wanted = [
        FlowFiles(checkpoints, pipeline, each.flow)
        for each in statuses(checkpoints, pipeline)
        if flow is None or each.flow.removesuffix(REJECTED) == flow
    ]
    if not wanted:
        raise NotFound(f"no flow {flow} of {pipeline} has run over {checkpoints}")
    for files in wanted:
        if files.is_held:
            files.ask_to_stop("now" if now else "after the batch")
    by = clock.monotonic_seconds() + seconds_max
    while any(files.is_held for files in wanted):
        if clock.monotonic_seconds() >= by:
            raise Unavailable(
                f"{pipeline} still runs after {seconds_max:.0f} s; it stops after its batch. Wait, "
                "or add --now: the batch is then cut off and repeated at the next start"
            )
        pause(_LOOK_EVERY_SECONDS)
    return [each for each in statuses(checkpoints, pipeline) if flow in (None, each.flow)]
