"""The mark of a delivery, in the one field of `msg_id` that every client gives back unread.

An ack names topic, subscription and offset, and an offset means another message once the topic or
the subscription was made anew. So a delivery carries the mark of the subscription that made it,
behind a `#` in `msg_id.broker_addr`, and the ack brings it back.
"""

_BEFORE_MARK = "#"


def marked_address(broker_url: str, mark: str) -> str:
    """Return the address to deliver a message with; as a URL it leads to the same broker."""
    return f"{broker_url}{_BEFORE_MARK}{mark}"


def mark_of(address: str) -> str | None:
    """Return the mark of an address that came back; None if it never had one."""
    _, found, mark = address.rpartition(_BEFORE_MARK)
    return mark if found else None
