"""A data source that only writes; what the tests of the topic writer register."""

from pyspark.sql.datasource import DataSource

from headwater.pipelines.topic_writer import batch_writer, stream_writer
from headwater.sinks.contract import Log


class TopicDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "headwater-topic"

    def streamWriter(self, schema, overwrite):
        return stream_writer(self.options, schema, Log(self.options["bootstrap"]))

    def writer(self, schema, overwrite):
        return batch_writer(self.options, schema, Log(self.options["bootstrap"]))
