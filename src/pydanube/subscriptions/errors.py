"""What a subscription refuses."""

from pydanube.errors import AccessDenied, Conflict


class SubscriptionBusy(AccessDenied):
    """An exclusive subscription is held by another consumer."""

    code = "subscription_busy"


class ConsumerDisplaced(Conflict):
    """Another connection has come under the consumer's name, and has its messages now."""

    code = "consumer_displaced"
