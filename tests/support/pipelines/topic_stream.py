"""A driver of its own: files into a topic, one by one. To be killed."""

import sys

import headwater as hw

address, topic, files, checkpoint, *master = sys.argv[1:]
spark = hw.spark(
    "killed",
    *(master or ["local[2]"]),
    **{"spark.driver.memory": "1g", "spark.executor.memory": "512m"},
    **{"spark.driver.host": "127.0.0.1"},
)
frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(files)
query = (
    frame.writeStream.format("headwater")
    .options(bootstrap=address, topic=topic)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
