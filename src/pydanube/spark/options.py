"""The options of `format("danube")`: names, defaults, meaning, and how they are read. Pure.

An option that is not known, or whose value makes no sense, is refused with the name of the
option and what to write instead.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct
from typing_extensions import override

from pydanube.errors import InvalidRequest
from pydanube.model.names import check_client_name, check_topic_name
from pydanube.spark.amounts import read_duration_ms, read_instant_ms, read_size
from pydanube.storage.config import Durable

DEFAULT_URL = "http://127.0.0.1:6650"
URL_VARIABLE = "DANUBE_SERVICE_URL"
STORE_PREFIX = "store."

_Value = TypeVar("_Value")


class Option(Struct, frozen=True):
    """One option, as the reference page shows it."""

    name: str
    default: str
    meaning: str


SECURITY_OPTIONS = (
    Option("token", "none", "bearer token; it shows in Spark's plans, so prefer the next two"),
    Option("tokenFile", "none", "file that holds the token; read again when the token is refused"),
    Option("tokenEnv", "none", "environment variable of the workers that holds the token"),
    Option(
        "tlsCa", "none", "file with the certificates to trust; switches TLS on, as a token does"
    ),
    Option("tlsCert", "none", "file with this client's certificate"),
    Option("tlsKey", "none", "file with the key of that certificate"),
)

READ_OPTIONS = (
    Option(
        "url",
        f"`{URL_VARIABLE}`, else `{DEFAULT_URL}`",
        "brokers, comma-separated; one finds all of a cluster, several outlast it",
    ),
    Option("topic", "one of three", "base name of a topic"),
    Option("topics", "one of three", "base names, comma-separated"),
    Option("topicsPattern", "one of three", "regular expression (RE2) over whole base names"),
    Option(
        "startingOffsets",
        "`earliest`, in streams `latest`",
        "`earliest`, `latest`, `committed` (where the subscription stands, `earliest` where it has "
        "no cursor yet), or offsets by partition as JSON",
    ),
    Option("endingOffsets", "`latest`", "batch reads only: `latest`, or offsets by partition"),
    Option(
        "startingTimestamp",
        "none",
        "first offset at or after it, instead of startingOffsets: ISO-8601, milliseconds since "
        "1970, or `-10m`",
    ),
    Option("endingTimestamp", "none", "batch reads only: first offset that is left out"),
    Option(
        "subscription",
        "none",
        "cursor that mirrors the progress of a stream, so that its lag shows at the broker",
    ),
    Option("holdRetention", "`true`", "whether that cursor keeps history it has not passed"),
    Option("holdTtl", "`7d`", "a cursor that is not moved for so long no longer keeps history"),
    Option("maxRowsPerTrigger", "none", "rows of a micro-batch, about; the smaller limit wins"),
    Option("maxBytesPerTrigger", "`1g`", "bytes of a micro-batch, about"),
    Option("minRowsPerTrigger", "`0`", "wait for so many rows, but not longer than the next one"),
    Option("maxTriggerDelay", "`15m`", "how long to wait for minRowsPerTrigger"),
    Option("maxBytesPerPartition", "`64m`", "about what one task reads"),
    Option("minPartitions", "none", "tasks to cut a batch into, if it has as many rows"),
    Option("splitPartitions", "`true`", "`false`: one task per partition of a topic"),
    Option(
        "failOnDataLoss",
        "`true`",
        "`false`: go on where messages are left when some have expired or a topic is gone",
    ),
    Option("decode", "`raw`", "`schema`: columns value and decode_error, by the topic's schema"),
    Option("schemaVersion", "latest", "version of the schema that value has"),
    Option("onDecodeError", "`null`", "`null`: value is null, decode_error says why; or `fail`"),
    Option("columns", "all", "the columns to read, comma-separated"),
    Option(
        "pushdown",
        "`false`",
        "let Spark hand filters to the source; needs spark.sql.python.filterPushdown.enabled",
    ),
    Option(
        "segmentAccess",
        "`auto`",
        "`direct`: tasks open segments themselves; `broker`: everything comes through the broker; "
        "`auto`: directly where the segment store can be opened",
    ),
    Option("pollMs", "`100`", "how long the broker holds a question for more when there is none"),
    Option("discoverySeconds", "`30`", "how often to look for new topics of a pattern"),
    Option("requestTimeoutMs", "`30000`", "time for one call"),
)

WRITE_OPTIONS = (
    Option(
        "url",
        f"`{URL_VARIABLE}`, else `{DEFAULT_URL}`",
        "brokers, comma-separated; one finds all of a cluster, several outlast it",
    ),
    Option("topic", "the column `topic`", "where to; created reliable if the broker allows"),
    Option(
        "encode",
        "`none`",
        "`none`: the column payload, binary or text; `json`, `avro`, `protobuf`: all columns that "
        "are not of the envelope become the payload",
    ),
    Option(
        "schemaSubject", "none", "subject of the registry by whose schema `avro` and `protobuf` go"
    ),
    Option("guarantee", "`exactly_once`", "or `at_least_once`: rows are not numbered"),
    Option(
        "order",
        "`input`",
        "`sorted`: sort the rows of a task before they are numbered; needed after a shuffle",
    ),
    Option("producerColumn", "none", "column that names the producer of a row, with the next one"),
    Option("sequenceColumn", "none", "column with the number of a row: growing per producer"),
    Option("jobId", "random", "batch writes: the same id again adds nothing"),
    Option("producer", "none", "batch writes: instead of jobId, with epoch"),
    Option("epoch", "none", "batch writes: number of this batch of the producer; 0, 1, 2 …"),
    Option("batchRows", "`4096`", "rows that are published at once"),
    Option("batchBytes", "`4m`", "about how many bytes are published at once; at most `12m`"),
    Option("inFlight", "`8`", "batches on their way at a time"),
    Option("requestTimeoutMs", "`30000`", "time for one call"),
)

Boundary = Literal["earliest", "latest", "committed"]
Offsets = dict[str, int]


class Access(Struct, frozen=True, kw_only=True):
    """How to reach brokers. Hashable: connections are kept by it."""

    urls: tuple[str, ...]
    request_timeout_ms: int = 30_000
    token: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @override
    def __repr__(self) -> str:
        return f"Access(urls={self.urls!r}, …)"  # A token must never reach a log.


class Selection(Struct, frozen=True, kw_only=True):
    """Which topics: names, or a pattern over names."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def describe(self) -> str:
        """Name the option and its value."""
        return f"topicsPattern {self.pattern!r}" if self.pattern else ", ".join(self.names)


class ReadOptions(Struct, frozen=True, kw_only=True):
    """What a reader was asked to do."""

    access: Access
    selection: Selection
    starting_offsets: Boundary | Offsets
    ending_offsets: Literal["latest"] | Offsets = "latest"
    starting_time_ms: int | None = None
    ending_time_ms: int | None = None
    subscription: str | None = None
    hold_retention: bool = True
    hold_ttl_ms: int = 7 * 86_400_000
    rows_max: int | None = None
    bytes_max: int = 2**30
    rows_min: int = 0
    delay_ms_max: int = 15 * 60_000
    task_bytes: int = 64 * 2**20
    tasks_min: int | None = None
    split: bool = True
    fail_on_data_loss: bool = True
    decode: Literal["raw", "schema"] = "raw"
    schema_version: int | None = None
    on_decode_error: Literal["null", "fail"] = "null"
    columns: tuple[str, ...] | None = None
    pushdown: bool = False
    segment_access: Literal["auto", "direct", "broker"] = "auto"
    store: Durable | None = None
    poll_ms: int = 100
    discovery_ms: int = 30_000


class WriteOptions(Struct, frozen=True, kw_only=True):
    """What a writer was asked to do."""

    access: Access
    topic: str | None = None
    encode: Literal["none", "json", "avro", "protobuf"] = "none"
    schema_subject: str | None = None
    guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    order: Literal["input", "sorted"] = "input"
    producer_column: str | None = None
    sequence_column: str | None = None
    job_id: str | None = None
    producer: str | None = None
    epoch: int | None = None
    batch_rows: int = 4_096
    batch_bytes: int = 4 * 2**20
    in_flight: int = 8


def read_options(
    options: Mapping[str, str], *, streaming: bool, now_ms: int, default_url: str = DEFAULT_URL
) -> ReadOptions:
    """Return what the options of a read say; InvalidRequest names the first that is wrong."""
    given = _Given(options, (*READ_OPTIONS, *SECURITY_OPTIONS), store=True)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp"):
            if given.text(name) is not None:
                raise InvalidRequest(
                    f"option {name} is for batch reads; end a stream with its trigger, such as "
                    "trigger(availableNow=True)"
                )
    subscription = given.read("subscription", _subscription)
    starting = given.read("startingOffsets", _starting)
    if starting is None:
        starting = "latest" if streaming else "earliest"
    if starting == "committed" and subscription is None:
        raise InvalidRequest(
            "option startingOffsets is committed, which is where a subscription stands; name it "
            "with option subscription"
        )
    given.together("onDecodeError", "schemaVersion", needs=("decode", "schema"))
    starting_ms = given.read("startingTimestamp", lambda text: read_instant_ms(text, now_ms))
    ending_ms = given.read("endingTimestamp", lambda text: read_instant_ms(text, now_ms))
    found: dict[str, Any] = {
        "ending_offsets": given.read("endingOffsets", _ending),
        "starting_time_ms": starting_ms,
        "ending_time_ms": ending_ms,
        "hold_retention": given.read("holdRetention", _flag),
        "hold_ttl_ms": given.read("holdTtl", read_duration_ms),
        "rows_max": given.read("maxRowsPerTrigger", _positive),
        "bytes_max": given.read("maxBytesPerTrigger", read_size),
        "rows_min": given.read("minRowsPerTrigger", _count),
        "delay_ms_max": given.read("maxTriggerDelay", read_duration_ms),
        "task_bytes": given.read("maxBytesPerPartition", read_size),
        "tasks_min": given.read("minPartitions", _positive),
        "split": given.read("splitPartitions", _flag),
        "fail_on_data_loss": given.read("failOnDataLoss", _flag),
        "decode": given.read("decode", _one_of("raw", "schema")),
        "schema_version": given.read("schemaVersion", _positive),
        "on_decode_error": given.read("onDecodeError", _one_of("null", "fail")),
        "columns": given.read("columns", _names),
        "pushdown": given.read("pushdown", _flag),
        "segment_access": given.read("segmentAccess", _one_of("auto", "direct", "broker")),
        "store": given.store(),
        "poll_ms": given.read("pollMs", _count),
        "discovery_ms": given.read("discoverySeconds", lambda text: _count(text) * 1000),
    }
    return ReadOptions(
        access=_access(given, default_url),
        selection=_selection(given),
        starting_offsets=starting,
        subscription=subscription,
        **{name: value for name, value in found.items() if value is not None},
    )


def write_options(
    options: Mapping[str, str], *, streaming: bool, default_url: str = DEFAULT_URL
) -> WriteOptions:
    """Return what the options of a write say; InvalidRequest names the first that is wrong."""
    given = _Given(options, (*WRITE_OPTIONS, *SECURITY_OPTIONS), store=False)
    if streaming:
        for name in ("jobId", "producer", "epoch"):
            if given.text(name) is not None:
                raise InvalidRequest(
                    f"option {name} is for batch writes; a stream is known by its checkpoint"
                )
    _check_identity(given)
    found: dict[str, Any] = {
        "topic": given.read("topic", check_topic_name),
        "encode": given.read("encode", _one_of("none", "json", "avro", "protobuf")),
        "schema_subject": given.text("schemaSubject"),
        "guarantee": given.read("guarantee", _one_of("exactly_once", "at_least_once")),
        "order": given.read("order", _one_of("input", "sorted")),
        "producer_column": given.text("producerColumn"),
        "sequence_column": given.text("sequenceColumn"),
        "job_id": given.read("jobId", _identity),
        "producer": given.read("producer", _identity),
        "epoch": given.read("epoch", _epoch),
        "batch_rows": given.read("batchRows", _batch_rows),
        "batch_bytes": given.read("batchBytes", _batch_bytes),
        "in_flight": given.read("inFlight", _positive),
    }
    return WriteOptions(
        access=_access(given, default_url),
        **{name: value for name, value in found.items() if value is not None},
    )


def access_of(options: Mapping[str, str], default_url: str = DEFAULT_URL) -> Access:
    """Return how to reach brokers, of options that say nothing else."""
    names = ("url", "requestTimeoutMs")
    known = [option for option in READ_OPTIONS if option.name in names]
    return _access(_Given(options, (*known, *SECURITY_OPTIONS), store=False), default_url)


def _check_identity(given: "_Given") -> None:
    for one, other in (
        ("producer", "epoch"),
        ("epoch", "producer"),
        ("producerColumn", "sequenceColumn"),
        ("sequenceColumn", "producerColumn"),
    ):
        if given.text(one) is not None and given.text(other) is None:
            raise InvalidRequest(f"option {one} goes with option {other}; give both or neither")
    if given.text("jobId") is not None and given.text("producer") is not None:
        raise InvalidRequest("give either option jobId, or producer and epoch")
    encode = (given.text("encode") or "").lower()
    if encode in ("avro", "protobuf") and given.text("schemaSubject") is None:
        raise InvalidRequest(
            f"option encode is {encode}, which needs a schema: name its subject with schemaSubject"
        )


def _access(given: "_Given", default_url: str) -> Access:
    urls = given.read("url", _names) or _names(default_url)
    tokens = [name for name in ("token", "tokenFile", "tokenEnv") if given.text(name) is not None]
    if len(tokens) > 1:
        raise InvalidRequest(f"options {' and '.join(tokens)} mean the same; give one of them")
    if (given.text("tlsCert") is None) != (given.text("tlsKey") is None):
        raise InvalidRequest("options tlsCert and tlsKey go together; give both or neither")
    timeout = given.read("requestTimeoutMs", _positive)
    return Access(
        urls=urls,
        request_timeout_ms=timeout or 30_000,
        token=given.text("token"),
        token_file=given.text("tokenFile"),
        token_env=given.text("tokenEnv"),
        tls_ca=given.text("tlsCa"),
        tls_cert=given.text("tlsCert"),
        tls_key=given.text("tlsKey"),
    )


def _selection(given: "_Given") -> Selection:
    names = ("topic", "topics", "topicsPattern")
    present = [name for name in names if given.text(name) is not None]
    if len(present) != 1:
        what = f"options {' and '.join(present)} are given" if present else "none is given"
        raise InvalidRequest(
            f"no topic is given: set one of the options {', '.join(names)}, such as "
            f".option('topic', '/default/orders'); {what}"
        )
    if present == ["topicsPattern"]:
        return Selection(pattern=given.text("topicsPattern"))
    if present == ["topic"]:
        topic = given.read("topic", check_topic_name)
        assert topic is not None
        return Selection(names=(topic,))
    topics = given.read("topics", lambda text: tuple(map(check_topic_name, _names(text))))
    assert topics is not None
    return Selection(names=tuple(dict.fromkeys(topics)))


_MADE_BY_SPARK = {
    "path": "; load(), save() and start() take no name: say .option('topic', ...)",
    **dict.fromkeys(
        ("owner", "provider"),
        "; CREATE TABLE would lose the options: use CREATE TEMPORARY VIEW, or df.write",
    ),
}
"""Options that no user wrote, and what was written to have them."""


def _hint(unknown: str, names: Mapping[str, str]) -> str:
    if unknown in _MADE_BY_SPARK:
        return _MADE_BY_SPARK[unknown]
    nearest = get_close_matches(unknown, names, n=1, cutoff=0.5)
    return f"; did you mean {names[nearest[0]]}?" if nearest else ""


class _Given:
    """The options as they were given. Spark's own mapping ignores case, and so does this."""

    def __init__(self, options: Mapping[str, str], known: Iterable[Option], *, store: bool) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        names = {option.name.lower(): option.name for option in known}
        if store:
            names |= {
                f"{STORE_PREFIX}{field}": f"{STORE_PREFIX}{field}"
                for field in Durable.__struct_fields__
            }
        for name in options:
            if name.lower() not in names:
                raise InvalidRequest(f"there is no option {name}{_hint(name.lower(), names)}")

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def read(self, name: str, how: Callable[[str], _Value]) -> _Value | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return how(text)
        except InvalidRequest as error:
            raise InvalidRequest(f"option {name}: {error}") from None

    def together(self, *names: str, needs: tuple[str, str]) -> None:
        for name in names:
            if self.text(name) is not None and self.text(needs[0]) != needs[1]:
                raise InvalidRequest(f"option {name} needs option {needs[0]} to be {needs[1]}")

    def store(self) -> Durable | None:
        """Read `store.*`: the names of `storage.durable`."""
        values = {
            name.removeprefix(STORE_PREFIX): value
            for name, value in self._options.items()
            if name.startswith(STORE_PREFIX)
        }
        if not values:
            return None
        try:
            durable = msgspec.convert(values, Durable, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"options {STORE_PREFIX}*: {error}") from None
        if not durable.root:
            raise InvalidRequest(
                f"options {STORE_PREFIX}* need {STORE_PREFIX}root: the directory or bucket URL of "
                "the segments, as in the broker's storage.durable.root"
            )
        return durable


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    number = _count(text)
    if number < 1:
        raise InvalidRequest("must be at least 1")
    return number


def _epoch(text: str) -> int:
    number = _count(text)
    if number >= 2**31:
        raise InvalidRequest("must be below 2147483648")
    return number


def _batch_rows(text: str) -> int:
    number = _positive(text)
    if number > 65_536:
        raise InvalidRequest("must be at most 65536")
    return number


def _batch_bytes(text: str) -> int:
    size = read_size(text)
    if size > 12 * 2**20:
        raise InvalidRequest("must be at most 12m: brokers take batches of up to 16 MiB")
    return size


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise InvalidRequest(f"{text!r} is none of {', '.join(words)}")
        return text.lower()

    return read


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise InvalidRequest("is empty")
    return names


def _subscription(text: str) -> str:
    return check_client_name("subscription", text)


def _identity(text: str) -> str:
    check_client_name("producer", text)
    if len(text) > 200:
        raise InvalidRequest("must have at most 200 characters")
    return text


def _starting(text: str) -> Boundary | Offsets:
    if text.lower() in ("earliest", "latest", "committed"):
        return cast(Boundary, text.lower())  # One of the three, as was just seen.
    return _vector(text, "earliest, latest, committed")


def _ending(text: str) -> Literal["latest"] | Offsets:
    return "latest" if text.lower() == "latest" else _vector(text, "latest")


def _vector(text: str, words: str) -> Offsets:
    """Read offsets by partition: a map, or the `next` of a stream's offset."""
    try:
        found = msgspec.json.decode(text)
        if isinstance(found, dict) and isinstance(found.get("next"), dict):
            found = found["next"]
        offsets = msgspec.convert(found, dict[str, int])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            f"{text[:80]!r} is none of {words}, nor offsets by partition such as "
            f'{{"/default/orders-part-0": 100}}: {error}'
        ) from None
    if any(offset < 0 for offset in offsets.values()):
        raise InvalidRequest("an offset is at least 0")
    return offsets
