import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.errors.OffsetMetadataTooLarge;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;

/** Groups by both protocols: classic (assignment by a member) and consumer (KIP-848, by the broker). */
final class GroupChecks {
    private static final String ASSIGNORS = "org.apache.kafka.clients.consumer.";

    private GroupChecks() {}

    static void register(Checks checks) {
        checks.add("group-classic-range", (c, name) -> rebalance(c, name, classic(name, "RangeAssignor")));
        checks.add("group-classic-roundrobin", (c, name) -> rebalance(c, name, classic(name, "RoundRobinAssignor")));
        checks.add("group-classic-sticky", (c, name) -> rebalance(c, name, classic(name, "StickyAssignor")));
        checks.add("group-classic-cooperative-sticky",
            (c, name) -> rebalance(c, name, classic(name, "CooperativeStickyAssignor")));
        checks.add("group-consumer-uniform", (c, name) -> rebalance(c, name, consumer(name, "uniform")));
        checks.add("group-consumer-range", (c, name) -> rebalance(c, name, consumer(name, "range")));
        checks.add("group-classic-static-member", (c, name) -> staticMember(c, name, classic(name, "RangeAssignor")));
        checks.add("group-consumer-static-member", (c, name) -> staticMember(c, name, consumer(name, "uniform")));
        checks.add("group-classic-same-instance-is-fenced", GroupChecks::classicInstanceFenced);
        checks.add("group-consumer-same-instance-is-refused", GroupChecks::consumerInstanceRefused);
        checks.add("group-classic-session-timeout", GroupChecks::sessionTimeout);
        checks.add("group-classic-pattern", GroupChecks::classicPattern);
        checks.add("group-consumer-pattern", GroupChecks::consumerPattern);
        checks.add("group-consumer-pattern-invalid", GroupChecks::consumerPatternInvalid);
        checks.add("group-classic-partitions-added", (c, name) -> added(c, name, classic(name, "RangeAssignor")));
        checks.add("group-consumer-partitions-added", (c, name) -> added(c, name, consumer(name, "uniform")));
        checks.add("group-classic-resumes", (c, name) -> resumes(c, name, classic(name, "RangeAssignor")));
        checks.add("group-consumer-resumes", (c, name) -> resumes(c, name, consumer(name, "uniform")));
        checks.add("group-upgrades-from-classic-to-consumer", GroupChecks::upgrade);
        checks.add("group-commit-metadata", GroupChecks::commitMetadata);
        checks.add("group-commit-without-membership", GroupChecks::commitWithoutMembership);
        checks.add("group-describe-classic", (c, name) -> describe(c, name, classic(name, "RangeAssignor"), GroupType.CLASSIC));
        checks.add("group-describe-consumer", (c, name) -> describe(c, name, consumer(name, "uniform"), GroupType.CONSUMER));
        checks.add("group-offsets-by-admin", GroupChecks::offsetsByAdmin);
        checks.add("group-delete", GroupChecks::delete);
        checks.add("group-remove-members", GroupChecks::removeMembers);
    }

    private static String[] classic(String group, String assignor) {
        return new String[] {"group.id", group, "group.protocol", "classic",
            "partition.assignment.strategy", ASSIGNORS + assignor, "metadata.max.age.ms", "1000",
            "heartbeat.interval.ms", "500"};
    }

    private static String[] consumer(String group, String assignor) {
        return new String[] {"group.id", group, "group.protocol", "consumer",
            "group.remote.assignor", assignor, "metadata.max.age.ms", "1000"};
    }

    private static String[] and(String[] settings, String... more) {
        var all = new ArrayList<>(List.of(settings));
        all.addAll(List.of(more));
        return all.toArray(String[]::new);
    }

    /** One member takes all, a second takes its share, each record goes to one of them, the rest goes back. */
    private static void rebalance(Cluster cluster, String topic, String[] settings) throws Exception {
        cluster.topic(topic, 4);
        try (var one = new Member(cluster.consumer(settings), topic)) {
            Member.share(List.of(one), 4, 4);
            try (var two = new Member(cluster.consumer(settings), topic)) {
                Member.share(List.of(one, two), 4, 2);
                produce(cluster, topic, 4, 400);
                Checks.eventually("400 records are read", () -> one.values.size() + two.values.size() >= 400);
                Checks.that(!one.values.isEmpty() && !two.values.isEmpty(), "both members have read");
                var all = new ArrayList<>(one.values);
                all.addAll(two.values);
                Checks.equal(new HashSet<>(all).size(), 400, "different records");
                Checks.equal(all.size(), 400, "records");
            }
            Member.share(List.of(one), 4, 4);
        }
    }

    private static void produce(Cluster cluster, String topic, int partitions, int count) {
        try (var producer = cluster.producer()) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, i % partitions, null, Cluster.bytes("" + i)));
            }
        }
    }

    /** A static member that restarts within its session gets its partitions back; the other notices nothing. */
    private static void staticMember(Cluster cluster, String topic, String[] settings) throws Exception {
        cluster.topic(topic, 4);
        try (var stays = new Member(cluster.consumer(and(settings, "group.instance.id", "stays")), topic)) {
            var restarts = new Member(cluster.consumer(and(settings, "group.instance.id", "restarts")), topic);
            Member.share(List.of(stays, restarts), 4, 2);
            var held = restarts.partitions();
            int assignments = stays.assignments.get();
            restarts.close();
            restarts = new Member(cluster.consumer(and(settings, "group.instance.id", "restarts")), topic);
            Member.share(List.of(stays, restarts), 4, 2);
            Checks.equal(restarts.partitions(), held, "partitions after the restart");
            Checks.equal(stays.assignments.get(), assignments, "assignments of the other");
            restarts.close();
        }
    }

    private static void classicInstanceFenced(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var settings = and(classic(topic, "RangeAssignor"), "group.instance.id", "same");
        try (var first = new Member(cluster.consumer(settings), topic)) {
            Member.share(List.of(first), 1, 1);
            try (var second = new Member(cluster.consumer(settings), topic)) {
                Member.share(List.of(second), 1, 1);
                Checks.eventually("the first is fenced", () -> first.failure() instanceof FencedInstanceIdException);
            }
        }
    }

    private static void consumerInstanceRefused(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var settings = and(consumer(topic, "uniform"), "group.instance.id", "same");
        try (var first = new Member(cluster.consumer(settings), topic)) {
            Member.share(List.of(first), 1, 1);
            try (var second = new Member(cluster.consumer(settings), topic)) {
                Checks.eventually("the second is refused",
                    () -> second.failure() instanceof UnreleasedInstanceIdException);
            }
            Member.share(List.of(first), 1, 1);
        }
    }

    private static void sessionTimeout(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 2);
        var settings = and(classic(topic, "RangeAssignor"), "session.timeout.ms", "6000");
        try (var stays = new Member(cluster.consumer(settings), topic)) {
            var vanishes = new Member(cluster.consumer(settings), topic);
            Member.share(List.of(stays, vanishes), 2, 1);
            vanishes.vanish();
            Checks.equal(members(cluster, topic), 2, "members, as none has left the group");
            Member.share(List.of(stays), 2, 2);
        }
    }

    private static int members(Cluster cluster, String group) throws Exception {
        return cluster.admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size();
    }

    private static void classicPattern(Cluster cluster, String name) throws Exception {
        var pattern = Pattern.compile(name + "\\.[ab]");
        pattern(cluster, name, classic(name, "RangeAssignor"), (c, listener) -> c.subscribe(pattern, listener));
    }

    private static void consumerPattern(Cluster cluster, String name) throws Exception {
        var pattern = new SubscriptionPattern(name + "\\.[ab]");
        pattern(cluster, name, consumer(name, "uniform"), (c, listener) -> c.subscribe(pattern, listener));
    }

    private static void pattern(Cluster cluster, String name, String[] settings, Member.Subscription subscription)
            throws Exception {
        cluster.topic(name + ".a", 1);
        cluster.topic(name + ".c", 1);
        try (var member = new Member(cluster.consumer(settings), subscription)) {
            Checks.eventually("the topic that matches", () -> member.topics().equals(Set.of(name + ".a")));
            cluster.topic(name + ".b", 1);
            Checks.eventually("the later one", () -> member.topics().equals(Set.of(name + ".a", name + ".b")));
            Checks.equal(member.failure(), null, "failure");
        }
    }

    private static void consumerPatternInvalid(Cluster cluster, String name) throws Exception {
        Member.Subscription subscription = (c, listener) -> c.subscribe(new SubscriptionPattern("(unclosed"), listener);
        try (var member = new Member(cluster.consumer(consumer(name, "uniform")), subscription)) {
            Checks.eventually("it is refused", () -> member.failure() instanceof InvalidRegularExpression);
        }
    }

    private static void added(Cluster cluster, String topic, String[] settings) throws Exception {
        cluster.topic(topic, 1);
        try (var member = new Member(cluster.consumer(settings), topic)) {
            Member.share(List.of(member), 1, 1);
            cluster.admin.createPartitions(
                Map.of(topic, org.apache.kafka.clients.admin.NewPartitions.increaseTo(3))).all().get();
            Member.share(List.of(member), 3, 3);
        }
    }

    /** What was committed is not read again; the rest is. */
    private static void resumes(Cluster cluster, String topic, String[] settings) throws Exception {
        cluster.topic(topic, 1);
        cluster.fill(Cluster.first(topic), 30);
        var polls = and(settings, "max.poll.records", "10", "enable.auto.commit", "false");
        try (var consumer = cluster.consumer(polls)) {
            consumer.subscribe(List.of(topic));
            Cluster.read(consumer, 10);
            consumer.commitSync();
            consumer.poll(Duration.ofMillis(500)); // read, but not committed
        }
        try (var consumer = cluster.consumer(polls)) {
            consumer.subscribe(List.of(topic));
            var values = Cluster.values(Cluster.read(consumer, 20));
            Checks.equal(values, IntStream.range(10, 30).mapToObj(Integer::toString).toList(), "values");
        }
    }

    /** KIP-848's way from the old protocol to the new: a classic group that is empty changes its type. */
    private static void upgrade(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        cluster.fill(Cluster.first(topic), 10);
        try (var consumer = cluster.consumer(classic(topic, "RangeAssignor"))) {
            consumer.subscribe(List.of(topic));
            Cluster.read(consumer, 10);
            consumer.commitSync();
        }
        cluster.fill(Cluster.first(topic), 5);
        try (var consumer = cluster.consumer(consumer(topic, "uniform"))) {
            consumer.subscribe(List.of(topic));
            Checks.equal(Cluster.read(consumer, 5).get(0).offset(), 10L, "first offset");
        }
    }

    private static void commitMetadata(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 2);
        var zero = Cluster.first(topic);
        var one = new TopicPartition(topic, 1);
        cluster.fill(zero, 10);
        try (var consumer = cluster.consumer("group.id", topic)) {
            consumer.assign(List.of(zero, one));
            consumer.commitSync(Map.of(zero, new OffsetAndMetadata(7, "note ü")));
            var committed = consumer.committed(Set.of(zero, one));
            Checks.equal(committed.get(zero).offset(), 7L, "offset");
            Checks.equal(committed.get(zero).metadata(), "note ü", "metadata");
            Checks.equal(committed.get(one), null, "never committed");
            var long_ = new OffsetAndMetadata(8, "x".repeat(5000));
            Checks.throwsError(OffsetMetadataTooLarge.class, () -> {
                consumer.commitSync(Map.of(zero, long_));
                return null;
            });
        }
    }

    private static void commitWithoutMembership(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        cluster.fill(Cluster.first(topic), 10);
        try (var consumer = cluster.assigned(Cluster.first(topic), "group.id", topic)) {
            Cluster.read(consumer, 10);
            consumer.commitSync();
        }
        try (var consumer = cluster.assigned(Cluster.first(topic), "group.id", topic)) {
            Checks.equal(consumer.position(Cluster.first(topic)), 10L, "position");
        }
    }

    private static void describe(Cluster cluster, String topic, String[] settings, GroupType type) throws Exception {
        cluster.topic(topic, 2);
        try (var member = new Member(cluster.consumer(and(settings, "client.id", "me")), topic)) {
            Member.share(List.of(member), 2, 2);
            Checks.eventually("the group is stable", () -> {
                var group = cluster.admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
                return group.groupState() == GroupState.STABLE;
            });
            var group = cluster.admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
            Checks.equal(group.type(), type, "type");
            Checks.equal(group.partitionAssignor(), type == GroupType.CLASSIC ? "range" : "uniform", "assignor");
            var described = group.members().iterator().next();
            Checks.equal(described.clientId(), "me", "client id");
            Checks.equal(described.host(), "/127.0.0.1", "host");
            Checks.equal(described.assignment().topicPartitions(),
                Set.of(Cluster.first(topic), new TopicPartition(topic, 1)), "assignment");
            Checks.that(group.coordinator().port() > 0, "coordinator");

            var options = new ListGroupsOptions().withTypes(Set.of(type)).inGroupStates(Set.of(GroupState.STABLE));
            var listed = cluster.admin.listGroups(options).all().get();
            Checks.that(listed.stream().anyMatch(g -> g.groupId().equals(topic)), "listed by type and state");
            Checks.that(listed.stream().allMatch(g -> g.type().get() == type), "only of this type");
            var empty = cluster.admin.listGroups(new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY)));
            Checks.that(empty.all().get().stream().noneMatch(g -> g.groupId().equals(topic)), "not among the empty");
        }
    }

    private static void offsetsByAdmin(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        cluster.fill(partition, 10);
        var admin = cluster.admin;
        admin.alterConsumerGroupOffsets(topic, Map.of(partition, new OffsetAndMetadata(4, "set"))).all().get();
        var offsets = admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get();
        Checks.equal(offsets.get(partition).offset(), 4L, "offset");
        Checks.equal(offsets.get(partition).metadata(), "set", "metadata");
        try (var member = new Member(cluster.consumer(classic(topic, "RangeAssignor")), topic)) {
            Checks.eventually("the rest is read", () -> member.values.size() == 6);
            Checks.equal(member.values.peek(), "4", "first value");
            Checks.throwsError(GroupSubscribedToTopicException.class,
                () -> admin.deleteConsumerGroupOffsets(topic, Set.of(partition)).partitionResult(partition).get());
        }
        admin.deleteConsumerGroupOffsets(topic, Set.of(partition)).all().get();
        Checks.equal(admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get(), Map.of(), "after");
    }

    private static void delete(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var admin = cluster.admin;
        try (var member = new Member(cluster.consumer(classic(topic, "RangeAssignor")), topic)) {
            Member.share(List.of(member), 1, 1);
            Checks.throwsError(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
        }
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        Checks.throwsError(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
        Checks.throwsError(GroupIdNotFoundException.class, () -> admin.describeConsumerGroups(List.of(topic)).all().get());
    }

    private static void removeMembers(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var settings = and(classic(topic, "RangeAssignor"), "group.instance.id", "static");
        var member = new Member(cluster.consumer(settings), topic);
        Member.share(List.of(member), 1, 1);
        member.close(); // a static member does not leave
        Checks.equal(members(cluster, topic), 1, "members");
        var options = new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("static")));
        cluster.admin.removeMembersFromConsumerGroup(topic, options).all().get();
        Checks.equal(members(cluster, topic), 0, "members after");
    }
}
