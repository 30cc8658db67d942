import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/** Transactions of Java's producer: with transaction.version 2 those of KIP-890. */
final class TransactionChecks {
    private TransactionChecks() {}

    static void register(Checks checks) {
        checks.add("transactions-speak-version-two", TransactionChecks::feature);
        checks.add("transactions-commit-and-abort", TransactionChecks::commitAndAbort);
        checks.add("transactions-many-in-a-row", TransactionChecks::manyInARow);
        checks.add("transactions-of-many-partitions", TransactionChecks::manyPartitions);
        checks.add("transactions-empty", TransactionChecks::empty);
        checks.add("transactions-zombie-is-fenced", TransactionChecks::zombie);
        checks.add("transactions-fenced-by-admin", TransactionChecks::fencedByAdmin);
        checks.add("transactions-hanging-times-out", TransactionChecks::hanging);
        checks.add("transactions-interleaved", TransactionChecks::interleaved);
        checks.add("transactions-copy-classic-group", (c, name) -> copy(c, name, "classic"));
        checks.add("transactions-copy-consumer-group", (c, name) -> copy(c, name, "consumer"));
        checks.add("transactions-offsets-aborted", TransactionChecks::offsetsAborted);
        checks.add("transactions-offsets-of-a-stranger", TransactionChecks::offsetsOfAStranger);
        checks.add("transactions-list-and-describe", TransactionChecks::listAndDescribe);
        checks.add("transactions-aborted-by-admin", TransactionChecks::abortedByAdmin);
    }

    private static Producer<byte[], byte[]> producer(Cluster cluster, String id, String... pairs) {
        var all = new ArrayList<>(List.of("transactional.id", id));
        all.addAll(List.of(pairs));
        var producer = cluster.producer(all.toArray(String[]::new));
        producer.initTransactions();
        return producer;
    }

    private static void send(Producer<byte[], byte[]> producer, TopicPartition to, String... values) {
        for (String value : values) {
            producer.send(new ProducerRecord<>(to.topic(), to.partition(), null, Cluster.bytes(value)));
        }
        producer.flush();
    }

    private static Consumer<byte[], byte[]> committed(Cluster cluster, TopicPartition from) {
        var consumer = cluster.assigned(from, "isolation.level", "read_committed");
        consumer.seekToBeginning(List.of(from));
        return consumer;
    }

    private static void sees(Cluster cluster, TopicPartition from, List<String> expected) {
        try (var consumer = committed(cluster, from)) {
            Checks.equal(Cluster.values(Cluster.read(consumer, expected.size())), expected, "committed records");
        }
    }

    private static void feature(Cluster cluster, String name) throws Exception {
        var finalized = cluster.admin.describeFeatures().featureMetadata().get().finalizedFeatures();
        Checks.equal((int) finalized.get("transaction.version").maxVersionLevel(), 2, "transaction.version");
    }

    private static void commitAndAbort(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 2);
        var one = new TopicPartition(name, 0);
        var two = new TopicPartition(name, 1);
        try (var producer = producer(cluster, name)) {
            for (int i = 0; i < 6; i++) {
                producer.beginTransaction();
                send(producer, one, "" + i);
                send(producer, two, "" + i);
                if (i % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        for (var partition : List.of(one, two)) {
            sees(cluster, partition, List.of("0", "2", "3", "5"));
        }
    }

    private static void manyInARow(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        try (var producer = producer(cluster, name)) {
            for (int i = 0; i < 100; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(name, 0, null, Cluster.bytes("" + i)));
                producer.commitTransaction();
            }
        }
        sees(cluster, partition, IntStream.range(0, 100).mapToObj(i -> "" + i).toList());
    }

    private static void manyPartitions(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 30);
        try (var producer = producer(cluster, name)) {
            for (int round = 0; round < 4; round++) {
                producer.beginTransaction();
                for (int i = 0; i < 30; i++) {
                    producer.send(new ProducerRecord<>(name, i, null, Cluster.bytes("" + round)));
                }
                if (round == 2) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        for (int i = 0; i < 30; i += 7) {
            sees(cluster, new TopicPartition(name, i), List.of("0", "1", "3"));
        }
    }

    private static void empty(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        try (var producer = producer(cluster, name)) {
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, new TopicPartition(name, 0), "a");
            producer.commitTransaction();
        }
        sees(cluster, new TopicPartition(name, 0), List.of("a"));
    }

    private static void zombie(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        try (var zombie = producer(cluster, name)) {
            zombie.beginTransaction();
            send(zombie, partition, "zombie");
            try (var heir = producer(cluster, name)) {
                heir.beginTransaction();
                send(heir, partition, "heir");
                fenced(() -> {
                    zombie.commitTransaction();
                    return null;
                });
                heir.commitTransaction();
            }
        }
        sees(cluster, partition, List.of("heir"));
    }

    private static void fenced(Checks.Action action) throws Exception {
        try {
            action.run();
        } catch (ProducerFencedException | InvalidProducerEpochException expected) {
            return;
        }
        throw new AssertionError("a fenced producer goes on");
    }

    private static void fencedByAdmin(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        try (var producer = producer(cluster, name)) {
            producer.beginTransaction();
            send(producer, partition, "dropped");
            cluster.admin.fenceProducers(List.of(name)).all().get();
            fenced(() -> {
                producer.commitTransaction();
                return null;
            });
        }
        try (var producer = producer(cluster, name)) {
            producer.beginTransaction();
            send(producer, partition, "kept");
            producer.commitTransaction();
        }
        sees(cluster, partition, List.of("kept"));
    }

    private static void hanging(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        try (var hanging = producer(cluster, name, "transaction.timeout.ms", "1500");
             var other = producer(cluster, name + "-other")) {
            hanging.beginTransaction();
            send(hanging, partition, "forgotten");
            other.beginTransaction();
            send(other, partition, "behind");
            other.commitTransaction();
            sees(cluster, partition, List.of("behind")); // once the first has been aborted
            try {
                hanging.commitTransaction();
                throw new AssertionError("a transaction that timed out is committed");
            } catch (KafkaException expected) {
                // which one depends on the state that the coordinator is in
            }
        }
    }

    private static void interleaved(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        var producers = new ArrayList<Producer<byte[], byte[]>>();
        for (int i = 0; i < 4; i++) {
            producers.add(producer(cluster, name + "-" + i));
        }
        var expected = new ArrayList<String>();
        for (int round = 0; round < 8; round++) {
            for (int i = 0; i < 4; i++) {
                producers.get(i).beginTransaction();
                send(producers.get(i), partition, i + "." + round);
                if ((i + round) % 3 != 0) {
                    expected.add(i + "." + round);
                }
            }
            for (int i = 3; i >= 0; i--) {
                if ((i + round) % 3 != 0) {
                    producers.get(i).commitTransaction();
                } else {
                    producers.get(i).abortTransaction();
                }
            }
        }
        sees(cluster, partition, expected);
        producers.forEach(Producer::close);
    }

    /** Consume, transform, produce, in a group whose members change on the way. */
    private static void copy(Cluster cluster, String name, String protocol) throws Exception {
        String target = name + "-target";
        cluster.topic(name, 2);
        cluster.topic(target, 2);
        int count = 60;
        for (int p = 0; p < 2; p++) {
            cluster.fill(new TopicPartition(name, p), count);
        }
        String[] group = {
            "group.id", name, "group.protocol", protocol, "enable.auto.commit", "false",
            "isolation.level", "read_committed", "max.poll.records", "7",
        };
        int copied = 0;
        for (int life = 0; copied < 2 * count; life++) {
            Checks.that(life < 100, "it goes on and on");
            try (var producer = producer(cluster, name); var consumer = cluster.consumer(group)) {
                consumer.subscribe(List.of(name));
                int transactions = 0;
                while (transactions < 5 && copied < 2 * count) {
                    var records = consumer.poll(Duration.ofMillis(200));
                    if (records.isEmpty()) {
                        continue;
                    }
                    producer.beginTransaction();
                    var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
                    records.forEach(record -> {
                        producer.send(new ProducerRecord<>(
                            target, record.partition(), null, Cluster.bytes(Cluster.text(record.value()) + "!")));
                        offsets.put(
                            new TopicPartition(name, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    });
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    transactions++;
                    if (transactions == 3) {
                        producer.abortTransaction(); // as if the process had died: start again
                        break;
                    }
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
        }
        Checks.equal(copied, 2 * count, "records copied");
        for (int p = 0; p < 2; p++) {
            sees(cluster, new TopicPartition(target, p), IntStream.range(0, count).mapToObj(i -> i + "!").toList());
        }
        var offsets = cluster.admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get();
        for (int p = 0; p < 2; p++) {
            Checks.equal(offsets.get(new TopicPartition(name, p)).offset(), (long) count, "offset");
        }
    }

    private static void offsetsAborted(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        cluster.fill(partition, 3);
        try (var producer = producer(cluster, name);
             var consumer = cluster.consumer("group.id", name, "enable.auto.commit", "false")) {
            consumer.subscribe(List.of(name));
            Cluster.read(consumer, 3);
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(3)), consumer.groupMetadata());
            producer.abortTransaction();
            Checks.equal(consumer.committed(Set.of(partition)).get(partition), null, "an aborted offset");
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(2)), consumer.groupMetadata());
            producer.commitTransaction();
            Checks.eventually("the offset is committed", () -> {
                var found = consumer.committed(Set.of(partition)).get(partition);
                return found != null && found.offset() == 2;
            });
        }
    }

    @SuppressWarnings("removal") // there is no other way to pretend
    private static void offsetsOfAStranger(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        cluster.fill(partition, 1);
        try (var producer = producer(cluster, name);
             var consumer = cluster.consumer("group.id", name, "enable.auto.commit", "false")) {
            consumer.subscribe(List.of(name));
            Cluster.read(consumer, 1);
            var metadata = consumer.groupMetadata();
            var stranger = new ConsumerGroupMetadata(
                name, metadata.generationId(), "nobody", metadata.groupInstanceId());
            producer.beginTransaction();
            Checks.throwsError(CommitFailedException.class, () -> {
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1)), stranger);
                producer.commitTransaction();
                return null;
            });
            producer.abortTransaction();
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1)), metadata);
            producer.commitTransaction();
        }
    }

    private static void listAndDescribe(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 3);
        try (var producer = producer(cluster, name, "transaction.timeout.ms", "54321")) {
            producer.beginTransaction();
            send(producer, new TopicPartition(name, 0), "a");
            send(producer, new TopicPartition(name, 2), "b");
            var found = cluster.admin.describeTransactions(List.of(name)).description(name).get();
            Checks.equal(found.state(), TransactionState.ONGOING, "state");
            Checks.equal(found.transactionTimeoutMs(), 54321L, "timeout");
            Checks.equal(
                found.topicPartitions(), Set.of(new TopicPartition(name, 0), new TopicPartition(name, 2)), "partitions");
            Checks.that(found.transactionStartTimeMs().isPresent(), "it has begun");
            var ongoing = new ListTransactionsOptions()
                .filterStates(List.of(TransactionState.ONGOING))
                .filterProducerIds(List.of(found.producerId()));
            var listed = cluster.admin.listTransactions(ongoing).all().get();
            Checks.equal(listed.stream().map(transaction -> transaction.transactionalId()).toList(), List.of(name), "listed");
            var byName = new ListTransactionsOptions().filterOnTransactionalIdPattern(name + ".*");
            Checks.equal(cluster.admin.listTransactions(byName).all().get().size(), 1, "listed by name");
            producer.commitTransaction();
            Checks.eventually("it is complete", () -> cluster.admin.describeTransactions(List.of(name))
                .description(name).get().state() == TransactionState.COMPLETE_COMMIT);
        }
        Checks.throwsError(TransactionalIdNotFoundException.class,
            () -> cluster.admin.describeTransactions(List.of("no-" + name)).description("no-" + name).get());
    }

    private static void abortedByAdmin(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        var partition = new TopicPartition(name, 0);
        try (var producer = producer(cluster, name)) {
            producer.beginTransaction();
            send(producer, partition, "dropped");
            var active = cluster.admin.describeProducers(List.of(partition))
                .partitionResult(partition).get().activeProducers();
            var open = active.stream().filter(state -> state.currentTransactionStartOffset().isPresent()).toList();
            Checks.equal(open.size(), 1, "open transactions");
            cluster.admin.abortTransaction(new AbortTransactionSpec(
                partition, open.get(0).producerId(), (short) open.get(0).producerEpoch(),
                open.get(0).coordinatorEpoch().orElse(0))).all().get();
            try (var other = producer(cluster, name + "-other")) {
                other.beginTransaction();
                send(other, partition, "kept");
                other.commitTransaction();
            }
            sees(cluster, partition, List.of("kept"));
        }
    }
}
