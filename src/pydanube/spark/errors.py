"""What goes wrong between Spark and topics, beside what brokers refuse."""

from pydanube.errors import Conflict


class DataLoss(Conflict):
    """Offsets that were to be read are not there any more."""

    code = "spark_data_loss"

    def __init__(self, topic: str, wanted: str, available: str) -> None:
        super().__init__(
            f"topic {topic}: {wanted} was to be read, {available}. Keep messages for longer "
            "(retention, or a subscription that holds them), begin anew with another start and "
            "a new checkpoint, or go on with what is left: option failOnDataLoss=false"
        )
        self.topic = topic
