"""Checks and error codes that the APIs which change topics have in common."""

from headwater.broker.broker import Broker
from headwater.errors import ConfigError, HeadwaterError
from headwater.protocol.error_codes import ApiError, ErrorCode

# A request may ask for no more partitions than this, so that none can exhaust the broker.
MAX_PARTITIONS_PER_REQUEST = 100_000
_MESSAGE_CHARS = 1000  # a message may quote the client; a classic string ends at 32 KiB


def check_replicas(broker: Broker, partition: int, broker_ids: list[int]) -> None:
    """Raises the error code unless the replicas asked for are the one that there is."""
    if broker_ids != [broker.node_id]:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partition {partition} can only be placed on [{broker.node_id}], the one broker",
            detail=str(broker_ids[:10]),
        )


def check_partition_count(wanted: int) -> None:
    """Raises the error code for more partitions than one request may ask for."""
    if wanted > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"one request may create {MAX_PARTITIONS_PER_REQUEST} partitions",
            detail=f"{wanted} were asked for",
        )


# What a change of one topic may fail with; each has its code in the answer.
CHANGE_ERRORS = (HeadwaterError, OSError)


def refusal(error: HeadwaterError | OSError) -> tuple[ErrorCode, str]:
    """The code and the message of the answer to a refused change."""
    message = str(error)[:_MESSAGE_CHARS]
    match error:
        case ApiError():
            return error.code, message
        case ConfigError():
            return ErrorCode.INVALID_CONFIG, message
        case _:  # the disk: full, or failing
            return ErrorCode.KAFKA_STORAGE_ERROR, message
