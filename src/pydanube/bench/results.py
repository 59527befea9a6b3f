"""What came out, and how it is shown. Pure."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from pydanube.bench.jobs import JOBS, PAYLOAD_BYTES, Job, job_named


class Latencies(Struct, frozen=True, kw_only=True):
    """Milliseconds from the moment a message was due."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


class Measurement(Struct, frozen=True, kw_only=True):
    """One job on one system in one round."""

    system: str
    job: str
    round: int
    messages: int
    seconds: float
    server_cpu_us: float
    """Per message, of all processes of the server."""
    client_cpu_us: float
    """Per message, of publisher and consumer together."""
    acknowledged: Latencies | None = None
    """From due to acknowledged; of jobs that pace or wait for each message."""
    received: Latencies | None = None
    """From due to received by the consumer."""


class SystemNotes(Struct, frozen=True, kw_only=True):
    """What a reader must know to judge a system's rows."""

    name: str
    title: str
    """With the versions of server and client library."""
    fsync: str
    """When the disk has what was acknowledged."""
    batching: dict[str, str]
    """By job: how messages are put together, on the way in or out."""


class Row(Struct, frozen=True, kw_only=True):
    """The medians of all rounds of one job on one system."""

    job: str
    system: str
    rate: float
    server_cpu_us: float
    client_cpu_us: float
    acknowledged: Latencies | None
    received: Latencies | None
    ratio: float | None
    """How many times better the first system is: by rate, or by p99 where the rate is given.

    None for the first system itself.
    """
    cpu_ratio: float | None
    """This system's CPU per message divided by the first one's."""
    payload_bytes: int
    window: int
    fsync: str
    batching: str


class Report(Struct, frozen=True, kw_only=True):
    """All of one run."""

    machine: str
    disk: str
    rounds: int
    seconds: float
    systems: list[SystemNotes]
    absent: list[str]
    rows: list[Row]
    measurements: list[Measurement]


def merged(reports: Sequence[Report]) -> Report:
    """Return several runs of the same systems on the same machine as one; rounds count on."""
    first, rounds = reports[0], 0
    measurements: list[Measurement] = []
    for report in reports:
        measurements += [replace(each, round=each.round + rounds) for each in report.measurements]
        rounds += report.rounds
    payload_bytes = first.rows[0].payload_bytes if first.rows else PAYLOAD_BYTES
    rows = rows_of(measurements, first.systems, payload_bytes)
    return replace(first, rounds=rounds, rows=rows, measurements=measurements)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of them does not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latencies_of(seconds: Sequence[float]) -> Latencies | None:
    """Return the percentiles of latencies given in seconds; None of none."""
    if not seconds:
        return None
    return Latencies(
        p50_ms=percentile(seconds, 0.5) * 1e3,
        p99_ms=percentile(seconds, 0.99) * 1e3,
        p999_ms=percentile(seconds, 0.999) * 1e3,
    )


def rows_of(
    measurements: Sequence[Measurement], systems: Sequence[SystemNotes], payload_bytes: int
) -> list[Row]:
    """Return one row per job and system, in the order of the jobs, the first system first."""
    rows: list[Row] = []
    for job in JOBS:
        first: Row | None = None
        for system in systems:
            found = [m for m in measurements if (m.job, m.system) == (job.name, system.name)]
            if found:
                row = _row(job, system, found, first, payload_bytes)
                first = first or row
                rows.append(row)
    return rows


def _row(
    job: Job,
    system: SystemNotes,
    found: Sequence[Measurement],
    first: Row | None,
    payload_bytes: int,
) -> Row:
    rate = median(each.messages / each.seconds for each in found)
    server = median(each.server_cpu_us for each in found)
    client = median(each.client_cpu_us for each in found)
    acknowledged = _median_latencies(each.acknowledged for each in found)
    received = _median_latencies(each.received for each in found)
    ratio = cpu_ratio = None
    if first is not None:
        cpu_ratio = _divided(server + client, first.server_cpu_us + first.client_cpu_us)
        if job.rate is None:
            ratio = _divided(first.rate, rate)
        elif acknowledged is not None and first.acknowledged is not None:
            ratio = _divided(acknowledged.p99_ms, first.acknowledged.p99_ms)
    return Row(
        job=job.name,
        system=system.name,
        rate=rate,
        server_cpu_us=server,
        client_cpu_us=client,
        acknowledged=acknowledged,
        received=received,
        ratio=ratio,
        cpu_ratio=cpu_ratio,
        payload_bytes=payload_bytes,
        window=job.window,
        fsync=system.fsync,
        batching=system.batching.get(job.name, "one by one"),
    )


def _median_latencies(found: Iterable[Latencies | None]) -> Latencies | None:
    given = [each for each in found if each is not None]
    if not given:
        return None
    return Latencies(
        p50_ms=median(each.p50_ms for each in given),
        p99_ms=median(each.p99_ms for each in given),
        p999_ms=median(each.p999_ms for each in given),
    )


def _divided(dividend: float, divisor: float) -> float | None:
    return dividend / divisor if divisor else None


HEADINGS = (
    "job",
    "system",
    "msg/s",
    "times",
    "CPU us/msg: server + clients",
    "times",
    "acked p50 / p99 ms",
    "received p50 / p99 ms",
    "payload, window, batching",
    "fsync",
)


def cells_of(row: Row) -> list[str]:
    """Return a row as texts, in the order of HEADINGS."""
    unit = "batches" if job_named(row.job).batch_rows is not None else "messages"
    return [
        job_named(row.job).title,
        row.system,
        f"{row.rate:,.0f}",
        _times(row.ratio),
        f"{row.server_cpu_us:.1f} + {row.client_cpu_us:.1f}",
        _times(row.cpu_ratio),
        _milliseconds(row.acknowledged),
        _milliseconds(row.received),
        f"{row.payload_bytes:,} B, {row.window} {unit}, {row.batching}",
        row.fsync,
    ]


def markdown(report: Report) -> str:
    """Return the report as a page can hold it."""
    lines = [report.machine, report.disk]
    lines.append(f"{report.rounds} rounds of {report.seconds:g} s a job, systems in turns; medians")
    lines += [f"{system.name}: {system.title}" for system in report.systems]
    lines += report.absent
    table = [HEADINGS, ["---"] * len(HEADINGS), *map(cells_of, report.rows)]
    return "\n".join([*lines, "", *(f"| {' | '.join(cells)} |" for cells in table)])


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _milliseconds(latencies: Latencies | None) -> str:
    return "" if latencies is None else f"{latencies.p50_ms:.2f} / {latencies.p99_ms:.2f}"
