"""What a subscription refuses."""

from pydanube.errors import AccessDenied


class SubscriptionBusy(AccessDenied):
    """An exclusive subscription is held by another consumer."""

    code = "subscription_busy"
