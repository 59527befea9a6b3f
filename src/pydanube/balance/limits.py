"""What keeps rebalancing from moving anything now, and until when."""

from msgspec import Struct

from pydanube.balance.decisions import Outcome
from pydanube.balance.history import History
from pydanube.balance.imbalance import Balance
from pydanube.balance.settings import HOUR_MS, RebalanceSettings


class Hindrance(Struct, frozen=True, kw_only=True):
    """Why nothing moves."""

    outcome: Outcome
    reason: str
    next_check_ms: int
    """When it may be over."""


def find_hindrance(
    balance: Balance, settings: RebalanceSettings, history: History, now_ms: int
) -> Hindrance | None:
    """Return the first limit that keeps a scheduled look from moving anything."""
    return (
        _disabled(settings, now_ms)
        or _not_due(settings, history, now_ms)
        or _too_few(balance, settings, now_ms)
        or _balanced(balance, settings, now_ms, settling=history.settling)
        or _cooling_down(settings, history, now_ms)
        or _hourly_limit(settings, history, now_ms)
    )


def find_hindrance_of_request(
    balance: Balance, settings: RebalanceSettings, now_ms: int
) -> Hindrance | None:
    """Return what keeps moves from being made although somebody asked for them."""
    return _too_few(balance, settings, now_ms) or _balanced(
        balance, settings, now_ms, settling=False
    )


def _disabled(settings: RebalanceSettings, now_ms: int) -> Hindrance | None:
    if settings.enabled:
        return None
    return Hindrance(
        outcome="disabled",
        reason="load_manager.rebalancing.enabled is false",
        next_check_ms=now_ms + settings.check_interval_ms,
    )


def _not_due(settings: RebalanceSettings, history: History, now_ms: int) -> Hindrance | None:
    if history.checked_ms is None:
        return None
    due_ms = history.checked_ms + settings.check_interval_ms
    # A clock that was set back does not stop rebalancing until it has caught up.
    if now_ms >= due_ms or now_ms < history.checked_ms:
        return None
    return Hindrance(
        outcome="not_due",
        reason=f"the last look was {_seconds(now_ms - history.checked_ms)} ago, the next follows "
        f"after {_seconds(settings.check_interval_ms)}",
        next_check_ms=due_ms,
    )


def _too_few(balance: Balance, settings: RebalanceSettings, now_ms: int) -> Hindrance | None:
    needed = max(2, settings.brokers_min)
    if balance.broker_count >= needed:
        return None
    return Hindrance(
        outcome="too_few_brokers",
        reason=f"active brokers that report their load: {balance.broker_count}; needed: {needed}",
        next_check_ms=now_ms + settings.check_interval_ms,
    )


def _balanced(
    balance: Balance, settings: RebalanceSettings, now_ms: int, *, settling: bool
) -> Hindrance | None:
    variation = balance.coefficient_of_variation
    if variation > settings.release if settling else variation >= settings.threshold:
        return None
    bound = (
        f"at most {settings.release:.3f}, where moves of the level {settings.level} end"
        if settling
        else f"below {settings.threshold:.2f}, where moves of the level {settings.level} begin"
    )
    return Hindrance(
        outcome="balanced",
        reason=f"the imbalance is {variation:.3f}, {bound}",
        next_check_ms=now_ms + settings.check_interval_ms,
    )


def _cooling_down(settings: RebalanceSettings, history: History, now_ms: int) -> Hindrance | None:
    recent = history.moves_since(now_ms - settings.cooldown_ms)
    if not recent:
        return None
    return Hindrance(
        outcome="cooling_down",
        reason=f"a topic moved {_seconds(max(0, now_ms - recent[-1].at_ms))} ago, and "
        f"{_seconds(settings.cooldown_ms)} lie between two moves",
        next_check_ms=recent[-1].at_ms + settings.cooldown_ms,
    )


def _hourly_limit(settings: RebalanceSettings, history: History, now_ms: int) -> Hindrance | None:
    recent = history.moves_in_the_hour_before(now_ms)
    if len(recent) < settings.moves_per_hour_max:
        return None
    free_ms = recent[-settings.moves_per_hour_max].at_ms if settings.moves_per_hour_max else now_ms
    return Hindrance(
        outcome="hourly_limit",
        reason=f"{len(recent)} topics moved in the last hour, and "
        f"{settings.moves_per_hour_max} may",
        next_check_ms=free_ms + HOUR_MS,
    )


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"
