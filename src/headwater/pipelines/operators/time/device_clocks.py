"""Correction of device clocks by the times at which a row was sent and received.

    time = received - (sent - created)

`created` and `sent` are by the device's clock, `received` by the server's. The error of the
device's clock cancels out, unless it jumped between the two. The network's delay is taken as zero,
so times are late by that much. All rows are corrected, also those of clocks that are nearly right:
with a threshold, a clock with a smaller error would stay wrong, time would jump where the threshold
is passed, and the fastest of the clocks below it would move the watermark for all.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class DeviceClocks:
    sent: str  # names of columns
    received: str

    def corrected(self, created: pa.Array, sent: pa.Array, received: pa.Array) -> pa.Array:
        """Microseconds. Null without `created` or `received`. Where `sent` is null or before
        `created` the device's clock is unusable, and `received` is the time.
        """
        buffered_us = pc.subtract(sent, created)
        buffered_us = pc.max_element_wise(buffered_us, pa.scalar(0, pa.int64()))  # skips nulls, too
        return pc.if_else(created.is_valid(), pc.subtract(received, buffered_us), None)
