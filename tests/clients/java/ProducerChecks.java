import static java.util.stream.IntStream.range;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.record.TimestampType;

/** What a producer is promised; Java's is idempotent with acks=all unless configured otherwise. */
final class ProducerChecks {
    private ProducerChecks() {}

    static void register(Checks checks) {
        checks.add("produce-uncompressed", (cluster, name) -> roundTrip(cluster, name, "none"));
        checks.add("produce-gzip", (cluster, name) -> roundTrip(cluster, name, "gzip"));
        checks.add("produce-snappy", (cluster, name) -> roundTrip(cluster, name, "snappy"));
        checks.add("produce-lz4", (cluster, name) -> roundTrip(cluster, name, "lz4"));
        checks.add("produce-zstd", (cluster, name) -> roundTrip(cluster, name, "zstd"));
        checks.add("produce-null-and-empty", ProducerChecks::nullAndEmpty);
        checks.add("produce-order-in-flight", ProducerChecks::orderInFlight);
        checks.add("produce-acks-0-and-1", ProducerChecks::acks);
        checks.add("produce-large-record", ProducerChecks::largeRecord);
        checks.add("produce-too-large-is-refused", ProducerChecks::tooLarge);
        checks.add("produce-create-time", ProducerChecks::createTime);
        checks.add("produce-log-append-time", ProducerChecks::logAppendTime);
        checks.add("produce-timestamp-too-far-ahead", ProducerChecks::timestampTooFarAhead);
        checks.add("produce-creates-topic", ProducerChecks::createsTopic);
        checks.add("produce-invalid-topic-name", ProducerChecks::invalidTopicName);
        checks.add("produce-many-partitions", ProducerChecks::manyPartitions);
    }

    /** Keys, values and headers come back as they were sent, in order, at offsets without a gap. */
    private static void roundTrip(Cluster cluster, String topic, String compression) throws Exception {
        cluster.topic(topic, 1);
        int count = 500;
        try (var producer = cluster.producer("compression.type", compression, "linger.ms", "20")) {
            for (int i = 0; i < count; i++) {
                var record = new ProducerRecord<>(topic, Cluster.bytes("key " + i), value(i));
                record.headers().add("n", Cluster.bytes("" + i)).add("twice", new byte[] {0}).add("twice", null);
                producer.send(record);
            }
        }
        try (var consumer = cluster.assigned(Cluster.first(topic))) {
            var records = Cluster.read(consumer, count);
            for (int i = 0; i < count; i++) {
                var record = records.get(i);
                Checks.equal(record.offset(), (long) i, "offset");
                Checks.equal(Cluster.text(record.key()), "key " + i, "key");
                Checks.equal(record.value(), value(i), "value");
                var headers = new ArrayList<String>();
                record.headers().forEach(h -> headers.add(h.key() + "=" + Arrays.toString(h.value())));
                var number = Arrays.toString(Cluster.bytes("" + i));
                Checks.equal(headers, List.of("n=" + number, "twice=[0]", "twice=null"), "headers");
            }
        }
    }

    private static byte[] value(int i) {
        return Cluster.bytes(("value " + i + " ").repeat(1 + i % 40));
    }

    private static void nullAndEmpty(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        try (var producer = cluster.producer()) {
            producer.send(new ProducerRecord<>(topic, null, null));
            producer.send(new ProducerRecord<>(topic, new byte[0], new byte[0]));
            producer.send(new ProducerRecord<>(topic, Cluster.bytes("k"), null));
        }
        try (var consumer = cluster.assigned(Cluster.first(topic))) {
            var records = Cluster.read(consumer, 3);
            Checks.equal(records.get(0).key(), null, "null key");
            Checks.equal(records.get(0).value(), null, "null value");
            Checks.equal(records.get(1).key(), new byte[0], "empty key");
            Checks.equal(records.get(1).value(), new byte[0], "empty value");
            Checks.equal(records.get(2).value(), null, "tombstone");
        }
    }

    /** Small batches, five requests in flight: nothing overtakes, nothing is doubled. */
    private static void orderInFlight(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        int count = 20_000;
        var sent = new ArrayList<Future<RecordMetadata>>();
        try (var producer = cluster.producer("batch.size", "1000", "linger.ms", "0")) {
            for (int i = 0; i < count; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, Cluster.bytes("" + i))));
            }
        }
        for (int i = 0; i < count; i++) {
            Checks.equal(sent.get(i).get().offset(), (long) i, "acknowledged offset");
        }
        try (var consumer = cluster.assigned(Cluster.first(topic))) {
            var expected = range(0, count).mapToObj(Integer::toString).toList();
            Checks.that(Cluster.values(Cluster.read(consumer, count)).equals(expected), "order");
        }
    }

    private static void acks(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var record = new ProducerRecord<byte[], byte[]>(topic, Cluster.bytes("x"));
        try (var producer = cluster.producer("acks", "0", "enable.idempotence", "false")) {
            Checks.equal(producer.send(record).get().hasOffset(), false, "has an offset with acks=0");
        }
        try (var consumer = cluster.assigned(Cluster.first(topic))) {
            Cluster.read(consumer, 1);
        }
        try (var producer = cluster.producer("acks", "1", "enable.idempotence", "false")) {
            Checks.equal(producer.send(record).get().offset(), 1L, "offset with acks=1");
        }
    }

    private static void largeRecord(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1, "max.message.bytes", "8000000");
        var value = new byte[5_000_000];
        new Random(7).nextBytes(value);
        try (var producer = cluster.producer("max.request.size", "9000000")) {
            producer.send(new ProducerRecord<>(topic, value)).get();
            producer.send(new ProducerRecord<>(topic, Cluster.bytes("after"))).get();
        }
        // Larger than every fetch limit, and still handed out: a consumer can never get stuck (KIP-74).
        try (var consumer = cluster.assigned(Cluster.first(topic), "fetch.max.bytes", "100000",
                "max.partition.fetch.bytes", "100000")) {
            var records = Cluster.read(consumer, 2);
            Checks.equal(records.get(0).value(), value, "large value");
            Checks.equal(Cluster.text(records.get(1).value()), "after", "next value");
        }
    }

    private static void tooLarge(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1, "max.message.bytes", "20000");
        try (var producer = cluster.producer()) {
            var record = new ProducerRecord<byte[], byte[]>(topic, new byte[30_000]);
            Checks.throwsError(RecordTooLargeException.class, () -> producer.send(record).get());
            var small = new ProducerRecord<byte[], byte[]>(topic, new byte[10_000]);
            Checks.equal(producer.send(small).get().offset(), 0L, "the next one");
        }
    }

    private static void createTime(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        long at = System.currentTimeMillis() - 3_600_000;
        try (var producer = cluster.producer()) {
            var record = new ProducerRecord<byte[], byte[]>(topic, 0, at, null, Cluster.bytes("x"));
            Checks.equal(producer.send(record).get().timestamp(), at, "acknowledged timestamp");
        }
        var record = only(cluster, topic);
        Checks.equal(record.timestamp(), at, "timestamp");
        Checks.equal(record.timestampType(), TimestampType.CREATE_TIME, "type");
    }

    private static void logAppendTime(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1, "message.timestamp.type", "LogAppendTime");
        long before = System.currentTimeMillis();
        long acknowledged;
        try (var producer = cluster.producer("compression.type", "lz4")) {
            var record = new ProducerRecord<byte[], byte[]>(topic, 0, 1234L, null, Cluster.bytes("x"));
            acknowledged = producer.send(record).get().timestamp();
        }
        Checks.that(acknowledged >= before, "the broker's time is acknowledged, not " + acknowledged);
        var record = only(cluster, topic);
        Checks.equal(record.timestamp(), acknowledged, "timestamp");
        Checks.equal(record.timestampType(), TimestampType.LOG_APPEND_TIME, "type");
    }

    private static void timestampTooFarAhead(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1, "message.timestamp.after.max.ms", "60000");
        long ahead = System.currentTimeMillis() + 3_600_000;
        try (var producer = cluster.producer()) {
            var record = new ProducerRecord<byte[], byte[]>(topic, 0, ahead, null, Cluster.bytes("x"));
            Checks.throwsError(InvalidTimestampException.class, () -> producer.send(record).get());
        }
    }

    private static ConsumerRecord<byte[], byte[]> only(Cluster cluster, String topic) {
        try (var consumer = cluster.assigned(Cluster.first(topic))) {
            return Cluster.read(consumer, 1).get(0);
        }
    }

    private static void createsTopic(Cluster cluster, String topic) throws Exception {
        try (var producer = cluster.producer()) {
            var record = new ProducerRecord<byte[], byte[]>(topic, Cluster.bytes("x"));
            Checks.equal(producer.send(record).get().offset(), 0L, "offset");
        }
        Checks.that(cluster.admin.listTopics().names().get().contains(topic), "topic is listed");
    }

    private static void invalidTopicName(Cluster cluster, String name) throws Exception {
        try (var producer = cluster.producer()) {
            var record = new ProducerRecord<byte[], byte[]>("not a topic!", Cluster.bytes("x"));
            Checks.throwsError(InvalidTopicException.class, () -> producer.send(record).get());
        }
    }

    private static void manyPartitions(Cluster cluster, String topic) throws Exception {
        int partitions = 12;
        cluster.topic(topic, partitions);
        int[] acknowledged = new int[partitions];
        try (var producer = cluster.producer()) {
            Checks.equal(producer.partitionsFor(topic).size(), partitions, "partitions in the metadata");
            var sent = new ArrayList<Future<RecordMetadata>>();
            for (int i = 0; i < 3000; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, Cluster.bytes("key" + i), null)));
            }
            for (var future : sent) {
                acknowledged[future.get().partition()]++;
            }
        }
        try (var consumer = cluster.consumer()) {
            var all = consumer.partitionsFor(topic).stream()
                .map(p -> new org.apache.kafka.common.TopicPartition(topic, p.partition())).toList();
            consumer.assign(all);
            int[] read = new int[partitions];
            Cluster.read(consumer, 3000).forEach(record -> read[record.partition()]++);
            Checks.equal(read, acknowledged, "records by partition");
            Checks.that(Arrays.stream(read).allMatch(n -> n > 0), "each partition has some");
        }
    }
}
