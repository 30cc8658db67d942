"""Leader epochs: a client that sends another one has old (or newer) metadata."""

from typing import TYPE_CHECKING

from headwater.protocol.error_codes import ApiError, ErrorCode

if TYPE_CHECKING:
    from headwater.broker.broker import Broker


def check_epoch(broker: "Broker", epoch: int) -> None:
    """Raises the error code for an epoch that is not the broker's; -1 is no epoch."""
    if epoch < 0 or epoch == broker.store.leader_epoch:
        return
    if epoch < broker.store.leader_epoch:
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
    raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
