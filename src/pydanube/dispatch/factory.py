"""Makes the dispatcher that fits a subscription."""

from typing import assert_never

from pydanube.dispatch.best_effort import (
    BestEffortExclusiveDispatcher,
    BestEffortFailoverDispatcher,
    BestEffortKeySharedDispatcher,
    BestEffortSharedDispatcher,
)
from pydanube.dispatch.events import Dispatcher, DispatchSettings
from pydanube.dispatch.exclusive import ExclusiveDispatcher
from pydanube.dispatch.failover import FailoverDispatcher
from pydanube.dispatch.key_shared import KeySharedDispatcher
from pydanube.dispatch.shared import SharedDispatcher
from pydanube.model.ids import Offset
from pydanube.model.policies import SubscriptionType
from pydanube.model.progress import Progress


def create_dispatcher(
    type: SubscriptionType,
    reliable: bool,
    progress: Progress,
    settings: DispatchSettings,
    seen_end: Offset,
) -> Dispatcher:
    """Return a dispatcher that goes on from `progress`; on best-effort topics, from its cursor.

    Messages below `seen_end` may have been delivered by another one before.
    """
    match type:
        case "Exclusive":
            if reliable:
                return ExclusiveDispatcher(progress, settings, seen_end)
            return BestEffortExclusiveDispatcher(progress)
        case "Shared":
            if reliable:
                return SharedDispatcher(progress, settings, seen_end)
            return BestEffortSharedDispatcher(progress)
        case "Failover":
            if reliable:
                return FailoverDispatcher(progress, settings, seen_end)
            return BestEffortFailoverDispatcher(progress)
        case "KeyShared":
            if reliable:
                return KeySharedDispatcher(progress, settings, seen_end)
            return BestEffortKeySharedDispatcher(progress)
        case _:
            assert_never(type)
