import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.ShareConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Share groups (KIP-932): each record goes to one consumer at a time. */
final class ShareChecks {
    private static final int LOCK_MS = 1000;

    private ShareChecks() {}

    static void register(Checks checks) {
        checks.add("share-implicit-acknowledgement", ShareChecks::implicit);
        checks.add("share-explicit-acknowledgement", ShareChecks::explicit);
        checks.add("share-release", ShareChecks::release);
        checks.add("share-reject", ShareChecks::reject);
        checks.add("share-renew", ShareChecks::renew);
        checks.add("share-lock-expires", ShareChecks::lockExpires);
        checks.add("share-delivery-count-limit", ShareChecks::deliveryCountLimit);
        checks.add("share-two-consumers-of-one-partition", ShareChecks::twoConsumers);
        checks.add("share-many-consumers-of-many-partitions", ShareChecks::manyConsumers);
        checks.add("share-closed-consumer-releases", ShareChecks::closedConsumerReleases);
        checks.add("share-read-committed", ShareChecks::readCommitted);
        checks.add("share-latest-is-the-default", ShareChecks::latest);
        checks.add("share-partitions-added", ShareChecks::partitionsAdded);
        checks.add("share-describe-and-list", ShareChecks::describeAndList);
        checks.add("share-offsets-by-admin", ShareChecks::offsetsByAdmin);
        checks.add("share-delete", ShareChecks::delete);
    }

    private static ShareConsumer<byte[], byte[]> member(Cluster cluster, String name, String... pairs) {
        var settings = new Properties();
        settings.put("bootstrap.servers", cluster.bootstrap());
        settings.put("group.id", name);
        settings.put("metadata.max.age.ms", "1000");
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put(pairs[i], pairs[i + 1]);
        }
        var member = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        member.subscribe(List.of(name));
        return member;
    }

    private static ShareConsumer<byte[], byte[]> explicitly(Cluster cluster, String name) {
        return member(cluster, name, "share.acknowledgement.mode", "explicit");
    }

    /** A topic with records, and a group that reads it from its beginning. */
    private static void prepare(Cluster cluster, String name, int partitions, int records, String... configs)
        throws Exception {
        cluster.topic(name, partitions);
        configure(cluster, name, "share.auto.offset.reset", "earliest");
        configure(cluster, name, configs);
        for (int p = 0; p < partitions && records > 0; p++) {
            cluster.fill(new TopicPartition(name, p), records);
        }
    }

    private static void configure(Cluster cluster, String group, String... configs) throws Exception {
        Collection<AlterConfigOp> changes = new ArrayList<>();
        for (int i = 0; i < configs.length; i += 2) {
            changes.add(new AlterConfigOp(new ConfigEntry(configs[i], configs[i + 1]), AlterConfigOp.OpType.SET));
        }
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        cluster.admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get(30, TimeUnit.SECONDS);
    }

    private static List<ConsumerRecord<byte[], byte[]>> read(ShareConsumer<byte[], byte[]> member, int count) {
        var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (records.size() < count) {
            Checks.that(System.nanoTime() < deadline, "only " + records.size() + " of " + count + " records came");
            member.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        return records;
    }

    private static void commit(ShareConsumer<byte[], byte[]> member) {
        member.commitSync(Duration.ofSeconds(20)).forEach((partition, error) ->
            Checks.that(error.isEmpty(), partition + ": " + error));
    }

    private static void nothingMore(ShareConsumer<byte[], byte[]> member) {
        for (int i = 0; i < 3; i++) {
            var records = member.poll(Duration.ofMillis(300));
            Checks.equal(records.count(), 0, "more records");
        }
    }

    private static List<String> numbers(int count) {
        return IntStream.range(0, count).mapToObj(i -> "" + i).toList();
    }

    private static void implicit(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 20);
        try (var member = member(cluster, name)) {
            Checks.equal(Cluster.values(read(member, 20)), numbers(20), "values");
            member.poll(Duration.ofMillis(100)); // acknowledges what came before
            commit(member);
        }
        try (var member = member(cluster, name)) {
            nothingMore(member);
        }
    }

    private static void explicit(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 10);
        try (var member = explicitly(cluster, name)) {
            var records = read(member, 10);
            Checks.throwsError(IllegalStateException.class, () -> member.poll(Duration.ofMillis(100)));
            records.forEach(member::acknowledge);
            commit(member);
            nothingMore(member);
        }
    }

    private static void release(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 4);
        try (var member = explicitly(cluster, name)) {
            for (var record : read(member, 4)) {
                Checks.equal(record.deliveryCount().orElseThrow(), (short) 1, "deliveries");
                boolean isOdd = record.offset() % 2 == 1;
                member.acknowledge(record, isOdd ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            }
            commit(member);
            var again = read(member, 2);
            Checks.equal(Cluster.values(again), List.of("1", "3"), "released");
            again.forEach(record -> {
                Checks.equal(record.deliveryCount().orElseThrow(), (short) 2, "deliveries");
                member.acknowledge(record);
            });
            commit(member);
            nothingMore(member);
        }
    }

    private static void reject(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 3);
        try (var member = explicitly(cluster, name)) {
            for (var record : read(member, 3)) {
                member.acknowledge(record, record.offset() == 1 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
            }
            commit(member);
            nothingMore(member);
        }
        deadLetter(cluster, name, "1", "rejected");
    }

    /** The one dead letter of the topic. */
    private static void deadLetter(Cluster cluster, String name, String value, String cause) throws Exception {
        Checks.eventually("dead letters have a topic", () ->
            cluster.admin.listTopics().names().get().contains(name + ".dlq"));
        try (var consumer = cluster.assigned(Cluster.first(name + ".dlq"))) {
            var letter = Cluster.read(consumer, 1).get(0);
            Checks.equal(Cluster.text(letter.value()), value, "value of the dead letter");
            var about = new HashMap<String, String>();
            letter.headers().forEach(header -> about.put(header.key(), Cluster.text(header.value())));
            Checks.equal(about.get("headwater.dlq.group"), name, "group");
            Checks.equal(about.get("headwater.dlq.topic"), name, "topic");
            Checks.that(about.get("headwater.dlq.cause").contains(cause), "cause: " + about);
        }
    }

    private static void renew(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 1, "share.record.lock.duration.ms", "" + 3 * LOCK_MS);
        try (var slow = explicitly(cluster, name); var other = explicitly(cluster, name)) {
            var record = read(slow, 1).get(0);
            long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(5 * LOCK_MS);
            while (System.nanoTime() < until) {
                slow.acknowledge(record, AcknowledgeType.RENEW);
                commit(slow);
                Checks.equal(other.poll(Duration.ofMillis(LOCK_MS / 2)).count(), 0, "records for the other");
                var mine = slow.poll(Duration.ofMillis(100));
                Checks.that(mine.count() <= 1, "more than the renewed one");
                for (var renewed : mine) {
                    record = renewed;
                }
            }
            slow.acknowledge(record);
            commit(slow);
            nothingMore(other);
        }
    }

    private static void lockExpires(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 2, "share.record.lock.duration.ms", "" + LOCK_MS);
        try (var silent = explicitly(cluster, name); var other = explicitly(cluster, name)) {
            read(silent, 2);
            var again = read(other, 2);
            Checks.equal(Cluster.values(again), List.of("0", "1"), "values");
            again.forEach(record -> {
                Checks.equal(record.deliveryCount().orElseThrow(), (short) 2, "deliveries");
                other.acknowledge(record);
            });
            commit(other);
        }
    }

    private static void deliveryCountLimit(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 1, "share.delivery.count.limit", "2");
        try (var member = explicitly(cluster, name)) {
            for (int delivery = 1; delivery <= 2; delivery++) {
                var record = read(member, 1).get(0);
                Checks.equal(record.deliveryCount().orElseThrow(), (short) delivery, "deliveries");
                member.acknowledge(record, AcknowledgeType.RELEASE);
                commit(member);
            }
            nothingMore(member);
        }
        deadLetter(cluster, name, "0", "");
    }

    private static void twoConsumers(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 0);
        try (var first = member(cluster, name, "max.poll.records", "10");
             var second = member(cluster, name, "max.poll.records", "10");
             var producer = cluster.producer("linger.ms", "0")) {
            var seen = new HashMap<String, Integer>();
            int[] had = {0, 0};
            int sent = 0;
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
            while (seen.size() < 200 || had[0] == 0 || had[1] == 0) {
                Checks.that(System.nanoTime() < deadline, seen.size() + " records came, " + had[0] + " and " + had[1]);
                for (int i = 0; i < 10; i++) {
                    producer.send(new ProducerRecord<>(name, 0, null, Cluster.bytes("" + sent++))).get();
                }
                int which = 0;
                for (var member : List.of(first, second)) {
                    for (var record : member.poll(Duration.ofMillis(50))) {
                        seen.merge(Cluster.text(record.value()), 1, Integer::sum);
                        had[which]++;
                    }
                    which++;
                }
            }
            Checks.that(seen.values().stream().allMatch(n -> n == 1), "a record came twice");
        }
    }

    private static void manyConsumers(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 3, 30);
        var members = new ArrayList<ShareConsumer<byte[], byte[]>>();
        try {
            for (int i = 0; i < 5; i++) {
                members.add(member(cluster, name));
            }
            var seen = new ArrayList<String>();
            Checks.eventually(() -> "all 90 records, only " + seen.size(), () -> {
                for (var member : members) {
                    member.poll(Duration.ofMillis(50)).forEach(record ->
                        seen.add(record.partition() + "-" + record.offset()));
                }
                return seen.size() >= 90;
            });
            Checks.equal(new TreeSet<>(seen).size(), 90, "distinct records");
            Checks.equal(seen.size(), 90, "records");
        } finally {
            members.forEach(ShareConsumer::close);
        }
    }

    private static void closedConsumerReleases(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 5);
        try (var member = explicitly(cluster, name)) {
            read(member, 5);
        }
        try (var member = explicitly(cluster, name)) {
            var again = read(member, 5); // long before the lock of 30 s ends
            Checks.equal(Cluster.values(again), numbers(5), "values");
            again.forEach(member::acknowledge);
            commit(member);
        }
    }

    private static void readCommitted(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 0, "share.isolation.level", "read_committed");
        try (var producer = cluster.producer("transactional.id", name)) {
            producer.initTransactions();
            for (var value : List.of("aborted", "committed")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(name, Cluster.bytes(value))).get();
                if (value.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        try (var member = member(cluster, name)) {
            Checks.equal(Cluster.values(read(member, 1)), List.of("committed"), "values");
            nothingMore(member);
        }
    }

    private static void latest(Cluster cluster, String name) throws Exception {
        cluster.topic(name, 1);
        cluster.fill(Cluster.first(name), 3);
        try (var member = member(cluster, name)) {
            Checks.eventually("the group has begun to read", () -> {
                member.poll(Duration.ofMillis(100));
                return offsets(cluster, name).getOrDefault(Cluster.first(name), -1L) == 3;
            });
            cluster.fill(Cluster.first(name), 2);
            Checks.equal(read(member, 2).get(0).offset(), 3L, "first offset");
        }
    }

    private static void partitionsAdded(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 1);
        try (var member = member(cluster, name)) {
            read(member, 1);
            var more = org.apache.kafka.clients.admin.NewPartitions.increaseTo(2);
            cluster.admin.createPartitions(Map.of(name, more)).all().get();
            cluster.fill(new TopicPartition(name, 1), 2);
            Checks.equal(Cluster.values(read(member, 2)), List.of("0", "1"), "values of the new partition");
        }
    }

    private static Map<TopicPartition, Long> offsets(Cluster cluster, String group) throws Exception {
        var spec = Map.of(group, new ListShareGroupOffsetsSpec());
        var listed = cluster.admin.listShareGroupOffsets(spec).partitionsToOffsetInfo(group).get(30, TimeUnit.SECONDS);
        var offsets = new HashMap<TopicPartition, Long>();
        listed.forEach((partition, info) -> {
            if (info != null) {
                offsets.put(partition, info.startOffset());
            }
        });
        return offsets;
    }

    private static void describeAndList(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 2, 1);
        try (var member = member(cluster, name, "client.id", "c1", "client.rack", "r1")) {
            read(member, 2);
            var group = cluster.admin.describeShareGroups(List.of(name)).describedGroups().get(name).get();
            Checks.equal(group.groupState(), GroupState.STABLE, "state");
            Checks.equal(group.members().size(), 1, "members");
            var described = group.members().iterator().next();
            Checks.equal(described.clientId(), "c1", "client id");
            Checks.equal(described.assignment().topicPartitions(),
                Set.of(new TopicPartition(name, 0), new TopicPartition(name, 1)), "assignment");
            var shares = cluster.admin.listGroups(ListGroupsOptions.forShareGroups()).all().get();
            var listed = shares.stream().filter(share -> share.groupId().equals(name)).findFirst().orElseThrow();
            Checks.equal(listed.type().orElseThrow(), GroupType.SHARE, "type");
            Checks.equal(listed.groupState().orElseThrow(), GroupState.STABLE, "listed state");
            var consumers = cluster.admin.listGroups(ListGroupsOptions.forConsumerGroups()).all().get();
            Checks.that(consumers.stream().noneMatch(consumer -> consumer.groupId().equals(name)), "no consumer group");
        }
        Checks.throwsError(GroupIdNotFoundException.class, () ->
            cluster.admin.describeShareGroups(List.of(name + "-none")).all().get());
    }

    private static void offsetsByAdmin(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 10);
        var first = Cluster.first(name);
        try (var member = explicitly(cluster, name)) {
            var records = read(member, 10);
            records.subList(0, 4).forEach(member::acknowledge);
            records.subList(4, 10).forEach(record -> member.acknowledge(record, AcknowledgeType.RELEASE));
            commit(member);
            var spec = Map.of(name, new ListShareGroupOffsetsSpec());
            var info = cluster.admin.listShareGroupOffsets(spec).partitionsToOffsetInfo(name).get().get(first);
            Checks.equal(info.startOffset(), 4L, "start offset");
            Checks.equal(info.lag().orElse(-1L), 6L, "lag");
            Checks.throwsError(GroupNotEmptyException.class, () ->
                cluster.admin.alterShareGroupOffsets(name, Map.of(first, 8L)).all().get());
        }
        cluster.admin.alterShareGroupOffsets(name, Map.of(first, 8L)).all().get();
        Checks.equal(offsets(cluster, name), Map.of(first, 8L), "altered");
        try (var member = member(cluster, name)) {
            Checks.equal(Cluster.values(read(member, 2)), List.of("8", "9"), "values");
        }
        cluster.admin.deleteShareGroupOffsets(name, Set.of(name)).all().get();
        Checks.equal(offsets(cluster, name), Map.of(), "deleted");
        try (var member = member(cluster, name)) {
            Checks.equal(read(member, 10).size(), 10, "records from the beginning");
        }
    }

    private static void delete(Cluster cluster, String name) throws Exception {
        prepare(cluster, name, 1, 3);
        try (var member = member(cluster, name)) {
            read(member, 3);
            Checks.throwsError(GroupNotEmptyException.class, () ->
                cluster.admin.deleteShareGroups(List.of(name)).all().get());
        }
        cluster.admin.deleteShareGroups(List.of(name)).all().get();
        Checks.throwsError(GroupIdNotFoundException.class, () ->
            cluster.admin.describeShareGroups(List.of(name)).all().get());
        try (var member = member(cluster, name)) {
            Checks.equal(read(member, 3).size(), 3, "a new group of that name starts from the beginning");
        }
    }
}
