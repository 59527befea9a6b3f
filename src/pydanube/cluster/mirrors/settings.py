"""The `mirrors:` section of the broker's configuration."""

from typing import Annotated

from msgspec import Meta, Struct

from pydanube.model.policies import REPLICAS_MAX

MIB = 1024 * 1024


Replicas = Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]


class MirrorSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a topic's journal records get to other brokers, and how long that may take."""

    replicas: Annotated[
        Replicas | None,
        Meta(
            description="In how many journals a message is, unless its topic or namespace says "
            "otherwise; none: 2 in a cluster, 1 without. A publish is acknowledged when a "
            "majority of them has synced it.",
        ),
    ] = None
    patience_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="A mirror that makes no progress for this long is replaced by another "
            "broker, or left out when there is none.",
        ),
    ] = 3_000
    join_ms: Annotated[
        int,
        Meta(
            ge=100,
            description="How long a new mirror may take to catch up before another is tried.",
        ),
    ] = 10_000
    retry_ms: Annotated[
        int,
        Meta(ge=10, description="How long to wait before a broker that failed is tried again."),
    ] = 5_000
    unacknowledged_bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            description="Publishes to mirrored topics are refused while this much waits for "
            "mirrors.",
        ),
    ] = 64 * MIB
    backlog_bytes_max: Annotated[
        int,
        Meta(
            ge=MIB,
            description="Memory for what slow mirrors still need; beyond it they catch up from "
            "the journal.",
        ),
    ] = 32 * MIB
