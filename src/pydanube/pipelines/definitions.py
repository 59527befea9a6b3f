"""What a pipeline is: sources, steps and sinks, and how it is run. Pure.

A YAML file and the Python functions build the same objects; `graph.check_graph` says whether they
fit together.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Scalar = str | int | float | bool
Otherwise = Literal["fail", "drop", "warn", "dead_letter"]
SourceFormat = Literal["danube", "delta", "parquet"]
Count = Annotated[int, Meta(ge=0)]

IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]*$"
LABEL = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
Identifier = Annotated[str, Meta(pattern=IDENTIFIER)]
"""Sources and steps are names in SQL."""
Label = Annotated[str, Meta(pattern=LABEL)]
"""Pipelines and sinks are names of directories."""


class _Part(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a definition: what it does not know is an error."""


class Tls(_Part, frozen=True, kw_only=True):
    """Files for encrypted connections to brokers."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class Danube(_Part, frozen=True, kw_only=True):
    """How to reach the brokers; without a URL, as the data source does."""

    url: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    tls: Tls = Tls()

    def options(self) -> dict[str, str]:
        """Return this as options of the data source."""
        named = {
            "url": self.url,
            "tokenFile": self.token_file,
            "tokenEnv": self.token_env,
            "tlsCa": self.tls.ca,
            "tlsCert": self.tls.cert,
            "tlsKey": self.tls.key,
        }
        return {name: value for name, value in named.items() if value is not None}


class SparkSettings(_Part, frozen=True, kw_only=True):
    """Where Spark runs."""

    master: str = "local[*]"
    conf: dict[str, Scalar] = {}
    packages: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()
    row_bytes_max: str | int | None = None
    """A promise about all rows on their way to Python, as `pydanube.spark.session` takes it."""


class Trigger(_Part, frozen=True, kw_only=True):
    """When batches are made: one of the three."""

    every: str | None = None
    continuous: bool = False
    available_now: bool = False


class OnFailure(_Part, frozen=True, kw_only=True):
    """How often, and how soon, a flow that failed is started again."""

    restarts: Count = 10
    backoff: str = "1s"
    max_backoff: str = "60s"


class Watermark(_Part, frozen=True, kw_only=True):
    """How late rows may come, by one of their columns."""

    column: str
    delay: str


class Source(_Part, frozen=True, kw_only=True):
    """What flows read. `static` ones are looked up, `stream` ones are followed."""

    format: SourceFormat = "danube"
    topic: str | None = None
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    start: Scalar = "earliest"
    decode: Literal["raw", "schema"] = "raw"
    watermark: Watermark | None = None
    path: str | None = None
    mode: Literal["stream", "static"] = "stream"
    subscription: str | None = None
    options: dict[str, Scalar] = {}

    @property
    def selection(self) -> dict[str, str]:
        """Return which topics are read, as options of the data source."""
        named = {
            "topic": self.topic,
            "topics": ",".join(self.topics) or None,
            "topicsPattern": self.topics_pattern,
        }
        return {name: value for name, value in named.items() if value is not None}


class Expectation(_Part, frozen=True, kw_only=True):
    """What must be true of every row. Null counts as false."""

    name: Label
    check: str
    otherwise: Otherwise = "fail"


class Dedupe(_Part, frozen=True, kw_only=True):
    """Keeps the first row of each key; forgets keys after `within`."""

    keys: Annotated[tuple[str, ...], Meta(min_length=1)]
    within: str
    time: str


class State(_Part, frozen=True, kw_only=True):
    """Keeps what a class of ours wants to remember of each key, from batch to batch."""

    processor: str = field(name="class")
    """`module:Class`: a StatefulProcessor of PySpark with an attribute `output`, its columns."""
    keys: Annotated[tuple[str, ...], Meta(min_length=1)]
    time: Literal["none", "processing", "event"] = "none"


class Step(_Part, frozen=True, kw_only=True):
    """Makes one frame of others, by one of five verbs."""

    name: Identifier
    from_: Identifier | None = field(name="from", default=None)
    sql: str | None = None
    python: str | None = None
    expect: tuple[Expectation, ...] | None = None
    dedupe: Dedupe | None = None
    state: State | None = None

    @property
    def verbs(self) -> list[str]:
        """Return the verbs it has; one, if it is right."""
        given = {
            "sql": self.sql,
            "python": self.python,
            "expect": self.expect,
            "dedupe": self.dedupe,
            "state": self.state,
        }
        return [name for name, value in given.items() if value is not None]


class Sink(_Part, frozen=True, kw_only=True):
    """Where rows go. One sink is one flow, one streaming query, one checkpoint."""

    name: Label
    from_: Identifier = field(name="from")
    format: str
    """The name of a kind; `pipelines.sinks` has one file for each."""
    topic: str | None = None
    path: str | None = None
    table: str | None = None
    """`namespace.name` of an Iceberg table, or the table of a database."""
    url: str | None = None
    """Of a database, as SQLAlchemy writes it."""
    catalog: dict[str, Scalar] = {}
    """Where Iceberg tables are listed: type, and pyiceberg's properties."""
    encode: Literal["none", "json", "avro", "protobuf"] = "none"
    schema_subject: str | None = None
    mode: Literal["append", "upsert", "complete"] = "append"
    key: tuple[str, ...] = ()
    guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    partition_by: tuple[str, ...] = ()
    trigger: Trigger | None = None
    options: dict[str, Scalar] = {}

    @property
    def target(self) -> str:
        """Name the topic or table that it writes to."""
        return self.topic or self.path or self.table or self.format


class DeadLetter(_Part, frozen=True, kw_only=True):
    """Where rows go that break an expectation: a topic, a Delta table, or an Iceberg table."""

    topic: str | None = None
    path: str | None = None
    table: str | None = None
    catalog: dict[str, Scalar] = {}


class PipelineDefinition(_Part, frozen=True, kw_only=True):
    """A whole pipeline."""

    pipeline: Label
    version: Literal[1] = 1
    parameters: dict[str, Scalar] = {}
    danube: Danube = Danube()
    spark: SparkSettings = SparkSettings()
    checkpoints: str
    trigger: Trigger = Trigger(every="5s")
    on_failure: OnFailure = OnFailure()
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    sources: dict[Identifier, Source]
    steps: tuple[Step, ...] = ()
    sinks: Annotated[tuple[Sink, ...], Meta(min_length=1)]
    dead_letter: DeadLetter | None = None

    @property
    def needs_brokers(self) -> bool:
        """Tell whether topics of the brokers that `danube` names are read or written."""
        parts: list[Source | Sink] = [*self.sources.values(), *self.sinks]
        dead_letters = self.dead_letter is not None and self.dead_letter.topic is not None
        return dead_letters or any(
            each.format == "danube" and "url" not in each.options for each in parts
        )

    def trigger_of(self, sink: Sink) -> Trigger:
        """Return when a flow makes batches."""
        return sink.trigger or self.trigger
