import static java.util.stream.IntStream.range;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Reading by position: seek, times, limits, resets. */
final class ConsumerChecks {
    private ConsumerChecks() {}

    static void register(Checks checks) {
        checks.add("consume-seek-inside-a-batch", ConsumerChecks::seek);
        checks.add("consume-begin-and-end-offsets", ConsumerChecks::beginAndEnd);
        checks.add("consume-offsets-for-times", ConsumerChecks::offsetsForTimes);
        checks.add("consume-reset-latest", ConsumerChecks::resetLatest);
        checks.add("consume-reset-by-duration", ConsumerChecks::resetByDuration);
        checks.add("consume-without-position-or-reset", ConsumerChecks::noPosition);
        checks.add("consume-out-of-range", ConsumerChecks::outOfRange);
        checks.add("consume-out-of-range-resets", ConsumerChecks::outOfRangeResets);
        checks.add("consume-wakes-on-append", ConsumerChecks::wakesOnAppend);
        checks.add("consume-small-limits", ConsumerChecks::smallLimits);
        checks.add("consume-read-committed", ConsumerChecks::readCommitted);
        checks.add("consume-list-topics", ConsumerChecks::listTopics);
        checks.add("consume-partition-added-while-assigned", ConsumerChecks::severalPartitions);
        checks.add("consume-topic-recreated-under-the-same-name", ConsumerChecks::recreated);
    }

    private static void seek(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        cluster.fill(partition, 1000);
        try (var consumer = cluster.assigned(partition)) {
            for (int start : new int[] {500, 3, 999}) {
                consumer.seek(partition, start);
                var record = consumer.poll(Duration.ofSeconds(20)).iterator().next();
                Checks.equal(record.offset(), (long) start, "first record after seek");
                Checks.equal(Cluster.text(record.value()), "" + start, "its value");
            }
            consumer.seekToEnd(List.of(partition));
            Checks.equal(consumer.position(partition), 1000L, "end");
            consumer.seekToBeginning(List.of(partition));
            Checks.equal(consumer.position(partition), 0L, "beginning");
        }
    }

    private static void beginAndEnd(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 2);
        var partition = Cluster.first(topic);
        var empty = new org.apache.kafka.common.TopicPartition(topic, 1);
        cluster.fill(partition, 10);
        cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).all().get();
        try (var consumer = cluster.consumer()) {
            var both = List.of(partition, empty);
            Checks.equal(consumer.beginningOffsets(both), Map.of(partition, 4L, empty, 0L), "beginning");
            Checks.equal(consumer.endOffsets(both), Map.of(partition, 10L, empty, 0L), "end");
        }
    }

    private static void offsetsForTimes(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1, "retention.ms", "-1");
        var partition = Cluster.first(topic);
        cluster.fill(partition, 100, 50_000); // 50,000 ms, 51,000 ms, …
        try (var consumer = cluster.consumer()) {
            for (var asked : Map.of(0L, 0L, 50_000L, 0L, 50_001L, 1L, 99_000L, 49L, 149_000L, 99L).entrySet()) {
                var found = consumer.offsetsForTimes(Map.of(partition, asked.getKey())).get(partition);
                Checks.equal(found.offset(), asked.getValue(), "offset for " + asked.getKey());
                Checks.equal(found.timestamp(), 50_000L + 1000 * found.offset(), "its timestamp");
            }
            Checks.equal(consumer.offsetsForTimes(Map.of(partition, 149_001L)).get(partition), null, "after the end");
        }
    }

    private static void resetLatest(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        cluster.fill(partition, 5);
        try (var consumer = cluster.assigned(partition, "auto.offset.reset", "latest")) {
            Checks.equal(consumer.position(partition), 5L, "position");
            cluster.fill(partition, 2);
            Checks.equal(Cluster.values(Cluster.read(consumer, 2)), List.of("0", "1"), "only the new ones");
        }
    }

    private static void resetByDuration(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        long now = System.currentTimeMillis();
        cluster.fill(partition, 3, now - 7_200_000);
        cluster.fill(partition, 3, now - 60_000);
        try (var consumer = cluster.assigned(partition, "auto.offset.reset", "by_duration:PT1H")) {
            Checks.equal(consumer.position(partition), 3L, "position one hour back");
        }
    }

    private static void noPosition(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var settings = new String[] {"group.id", topic, "auto.offset.reset", "none"};
        try (var consumer = cluster.assigned(Cluster.first(topic), settings)) {
            Checks.throwsError(NoOffsetForPartitionException.class, () -> consumer.poll(Duration.ofSeconds(20)));
        }
    }

    private static void outOfRange(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        cluster.fill(partition, 10);
        cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(5))).all().get();
        try (var consumer = cluster.assigned(partition, "auto.offset.reset", "none")) {
            for (long gone : new long[] {2, 11}) {
                consumer.seek(partition, gone);
                Checks.throwsError(OffsetOutOfRangeException.class, () -> consumer.poll(Duration.ofSeconds(20)));
            }
            consumer.seek(partition, 5);
            Checks.equal(Cluster.read(consumer, 5).get(0).offset(), 5L, "the first that is left");
        }
    }

    private static void outOfRangeResets(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        cluster.fill(partition, 10);
        cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(6))).all().get();
        try (var consumer = cluster.assigned(partition)) {
            consumer.seek(partition, 1);
            Checks.equal(Cluster.values(Cluster.read(consumer, 4)), List.of("6", "7", "8", "9"), "what is left");
        }
    }

    /** A fetch that waits for data is answered by the append, not by its own timeout. */
    private static void wakesOnAppend(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        var waitsLong = new String[] {"fetch.max.wait.ms", "50000", "request.timeout.ms", "55000"};
        try (var consumer = cluster.assigned(partition, waitsLong)) {
            Checks.that(consumer.poll(Duration.ofSeconds(1)).isEmpty(), "nothing yet");
            cluster.fill(partition, 1);
            Checks.equal(consumer.poll(Duration.ofSeconds(25)).count(), 1, "records before the wait is over");
        }
    }

    private static void smallLimits(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        int count = 300;
        try (var producer = cluster.producer("batch.size", "4000")) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, new byte[1000]));
            }
        }
        try (var consumer = cluster.assigned(partition, "max.partition.fetch.bytes", "10",
                "fetch.max.bytes", "10", "fetch.min.bytes", "1000000", "fetch.max.wait.ms", "1",
                "max.poll.records", "7")) {
            long next = 0;
            while (next < count) {
                var polled = consumer.poll(Duration.ofSeconds(20));
                Checks.that(polled.count() <= 7, "max.poll.records");
                for (var record : polled) {
                    Checks.equal(record.offset(), next++, "offset");
                }
            }
        }
    }

    private static void readCommitted(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        cluster.fill(partition, 20);
        try (var consumer = cluster.assigned(partition, "isolation.level", "read_committed")) {
            Cluster.read(consumer, 20);
            Checks.equal(consumer.endOffsets(List.of(partition)).get(partition), 20L, "last stable offset");
            Checks.equal(consumer.currentLag(partition).getAsLong(), 0L, "lag");
        }
    }

    private static void listTopics(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 3);
        try (var consumer = cluster.consumer()) {
            var partitions = consumer.listTopics().get(topic);
            Checks.equal(partitions.stream().map(p -> p.partition()).sorted().toList(), List.of(0, 1, 2), "partitions");
            Checks.that(partitions.stream().allMatch(p -> p.leader() != null), "leaders");
        }
    }

    /** A fetch session takes partitions on and drops them again without losing records of any. */
    private static void severalPartitions(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 3);
        var partitions = range(0, 3).mapToObj(p -> new org.apache.kafka.common.TopicPartition(topic, p)).toList();
        cluster.fill(partitions.get(0), 10);
        try (var consumer = cluster.assigned(partitions.get(0))) {
            Cluster.read(consumer, 10);
            consumer.assign(partitions);
            for (var partition : partitions) {
                cluster.fill(partition, 5);
            }
            Cluster.read(consumer, 15);
            consumer.assign(List.of(partitions.get(2)));
            cluster.fill(partitions.get(0), 5);
            cluster.fill(partitions.get(2), 5);
            Cluster.read(consumer, 5).forEach(record -> Checks.equal(record.partition(), 2, "partition"));
        }
    }

    private static void recreated(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        cluster.fill(Cluster.first(topic), 3);
        cluster.admin.deleteTopics(List.of(topic)).all().get();
        Checks.eventually("the name is free again", () -> !cluster.admin.listTopics().names().get().contains(topic));
        cluster.topic(topic, 1);
        try (var consumer = cluster.assigned(Cluster.first(topic))) {
            Checks.equal(consumer.endOffsets(List.of(Cluster.first(topic))).get(Cluster.first(topic)), 0L, "end");
            cluster.fill(Cluster.first(topic), 1);
            Cluster.read(consumer, 1);
        }
    }
}
