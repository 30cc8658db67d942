"""Reads topics as another client sees them."""

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.settings import ClientSettings


def read_all(bootstrap, topic, login=None):
    """All committed records that are there now, partition by partition."""
    with Fetcher(bootstrap, login or ClientSettings()) as fetcher:
        partitions = [(topic, number) for number in range(fetcher.partitions(topic))]
        starts = fetcher.offsets(partitions, EARLIEST)
        ends = fetcher.offsets(partitions, LATEST)
        return [
            record for at in partitions for record in fetcher.records(*at, starts[at], ends[at])
        ]
