"""Clocks of devices, which are wrong, set right by two more times.

    time = received - (sent - created)

`created` and `sent` are by the device's clock, `received` by the server's. By how much the device's
clock is wrong cancels out, if it did not jump between the two. What the network took is taken for
nothing, so times are late by that much. All rows are set right, also those of clocks that are
nearly so: with a threshold a clock that is wrong by less would stay wrong, time would jump where
the threshold is passed, and the fastest of the clocks below it would move the watermark for all.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class DeviceClocks:
    sent: str  # names of columns
    received: str

    def corrected(self, created: pa.Array, sent: pa.Array, received: pa.Array) -> pa.Array:
        """Microseconds. Null where nothing is known: without `created` or `received`. Where `sent`
        is null or before `created` the device's clock tells nothing, and `received` is the time.
        """
        kept_us = pc.subtract(sent, created)
        kept_us = pc.max_element_wise(kept_us, pa.scalar(0, pa.int64()))  # skips nulls, too
        return pc.if_else(created.is_valid(), pc.subtract(received, kept_us), None)
