import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The admin client's calls. */
final class AdminChecks {
    private AdminChecks() {}

    static void register(Checks checks) {
        checks.add("admin-create-topic", AdminChecks::createTopic);
        checks.add("admin-create-topic-refusals", AdminChecks::createRefusals);
        checks.add("admin-create-topic-validate-only", AdminChecks::validateOnly);
        checks.add("admin-delete-topic", AdminChecks::deleteTopic);
        checks.add("admin-create-partitions", AdminChecks::createPartitions);
        checks.add("admin-describe-topics", AdminChecks::describeTopics);
        checks.add("admin-describe-topics-in-pages", AdminChecks::describeInPages);
        checks.add("admin-describe-cluster", AdminChecks::describeCluster);
        checks.add("admin-describe-features", AdminChecks::describeFeatures);
        checks.add("admin-describe-topic-configs", AdminChecks::describeTopicConfigs);
        checks.add("admin-describe-broker-configs", AdminChecks::describeBrokerConfigs);
        checks.add("admin-alter-configs", AdminChecks::alterConfigs);
        checks.add("admin-alter-configs-refusals", AdminChecks::alterRefusals);
        checks.add("admin-list-config-resources", AdminChecks::listConfigResources);
        checks.add("admin-list-offsets", AdminChecks::listOffsets);
        checks.add("admin-delete-records", AdminChecks::deleteRecords);
        checks.add("admin-describe-log-dirs", AdminChecks::describeLogDirs);
        checks.add("admin-elect-leaders", AdminChecks::electLeaders);
    }

    private static void createTopic(Cluster cluster, String topic) throws Exception {
        var wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "12345"));
        var created = cluster.admin.createTopics(List.of(wanted));
        Checks.equal(created.numPartitions(topic).get(), 3, "partitions");
        Checks.equal(created.replicationFactor(topic).get(), 1, "replicas");
        Checks.equal(created.config(topic).get().get("retention.ms").value(), "12345", "config");
        Checks.equal(created.config(topic).get().get("cleanup.policy").value(), "delete", "default config");
        var id = created.topicId(topic).get();
        Checks.equal(cluster.admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId(), id, "id");

        var defaults = new NewTopic(topic + "-defaults", java.util.Optional.empty(), java.util.Optional.empty());
        Checks.equal(cluster.admin.createTopics(List.of(defaults)).numPartitions(defaults.name()).get(), 1, "default");
        int broker = cluster.admin.describeCluster().nodes().get().iterator().next().id();
        var assigned = new NewTopic(topic + "-assigned", Map.of(0, List.of(broker), 1, List.of(broker)));
        Checks.equal(cluster.admin.createTopics(List.of(assigned)).numPartitions(assigned.name()).get(), 2, "assigned");
    }

    private static void createRefusals(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        refused(cluster, TopicExistsException.class, new NewTopic(topic, 1, (short) 1));
        refused(cluster, InvalidPartitionsException.class, new NewTopic(topic + "-zero", 0, (short) 1));
        refused(cluster, InvalidReplicationFactorException.class, new NewTopic(topic + "-three", 1, (short) 3));
        refused(cluster, InvalidTopicException.class, new NewTopic("a/b", 1, (short) 1));
        refused(cluster, InvalidConfigurationException.class,
            new NewTopic(topic + "-value", 1, (short) 1).configs(Map.of("retention.ms", "soon")));
        refused(cluster, InvalidConfigurationException.class,
            new NewTopic(topic + "-name", 1, (short) 1).configs(Map.of("no.such.setting", "1")));
    }

    private static void refused(Cluster cluster, Class<? extends Exception> error, NewTopic topic) {
        Checks.throwsError(error, () -> cluster.admin.createTopics(List.of(topic)).all().get());
    }

    private static void validateOnly(Cluster cluster, String topic) throws Exception {
        var wanted = List.of(new NewTopic(topic, 5, (short) 1));
        var checked = cluster.admin.createTopics(wanted, new CreateTopicsOptions().validateOnly(true));
        Checks.equal(checked.numPartitions(topic).get(), 5, "partitions");
        Checks.that(!cluster.admin.listTopics().names().get().contains(topic), "nothing was created");
    }

    private static void deleteTopic(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        cluster.topic(topic + "-by-id", 1);
        cluster.fill(Cluster.first(topic), 10);
        var described = cluster.admin.describeTopics(List.of(topic + "-by-id")).allTopicNames().get();
        var id = described.get(topic + "-by-id").topicId();
        cluster.admin.deleteTopics(List.of(topic)).all().get();
        cluster.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        Checks.eventually("both are gone",
            () -> cluster.admin.listTopics().names().get().stream().noneMatch(name -> name.startsWith(topic)));
        Checks.throwsError(UnknownTopicOrPartitionException.class,
            () -> cluster.admin.deleteTopics(List.of(topic)).all().get());
        Checks.throwsError(UnknownTopicIdException.class,
            () -> cluster.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get());
    }

    private static void createPartitions(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 2);
        cluster.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
        Checks.eventually("four partitions", () -> partitionCount(cluster, topic) == 4);
        cluster.fill(new TopicPartition(topic, 3), 1);
        for (int count : new int[] {4, 1}) {
            Checks.throwsError(InvalidPartitionsException.class,
                () -> cluster.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(count))).all().get());
        }
        Checks.throwsError(UnknownTopicOrPartitionException.class,
            () -> cluster.admin.createPartitions(Map.of(topic + "-none", NewPartitions.increaseTo(2))).all().get());
    }

    private static int partitionCount(Cluster cluster, String topic) throws Exception {
        return cluster.admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
    }

    private static void describeTopics(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 2);
        var byName = cluster.admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        Checks.equal(byName.isInternal(), false, "internal");
        for (var partition : byName.partitions()) {
            Checks.equal(partition.replicas().size(), 1, "replicas");
            Checks.equal(partition.isr(), partition.replicas(), "in sync");
            Checks.equal(partition.leader(), partition.replicas().get(0), "leader");
        }
        var ids = TopicCollection.ofTopicIds(List.of(byName.topicId()));
        var byId = cluster.admin.describeTopics(ids).allTopicIds().get().get(byName.topicId());
        Checks.equal(byId.name(), topic, "name by id");
        Checks.throwsError(UnknownTopicOrPartitionException.class,
            () -> cluster.admin.describeTopics(List.of(topic + "-none")).allTopicNames().get());
    }

    private static void describeInPages(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 17);
        cluster.topic(topic + "-2", 5);
        var options = new DescribeTopicsOptions().partitionSizeLimitPerResponse(4);
        var topics = cluster.admin.describeTopics(List.of(topic, topic + "-2"), options).allTopicNames().get();
        Checks.equal(topics.get(topic).partitions().size(), 17, "partitions");
        Checks.equal(topics.get(topic + "-2").partitions().size(), 5, "partitions of the second");
        Checks.equal(topics.get(topic).partitions().get(16).partition(), 16, "last partition");
    }

    private static void describeCluster(Cluster cluster, String name) throws Exception {
        var described = cluster.admin.describeCluster();
        Checks.equal(described.nodes().get().size(), 1, "nodes");
        Checks.that(!described.clusterId().get().isBlank(), "cluster id");
        Checks.equal(described.controller().get().id(), described.nodes().get().iterator().next().id(), "controller");
    }

    private static void describeFeatures(Cluster cluster, String name) throws Exception {
        var features = cluster.admin.describeFeatures().featureMetadata().get();
        Checks.that(features.finalizedFeatures().containsKey("group.version"),
            "group.version is finalized, which tells clients that KIP-848 can be used: " + features);
    }

    private static Config config(Cluster cluster, ConfigResource resource) throws Exception {
        return cluster.admin.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    private static ConfigResource of(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    private static void describeTopicConfigs(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1, "segment.bytes", "2000000");
        var config = config(cluster, of(topic));
        Checks.equal(config.get("segment.bytes").value(), "2000000", "own value");
        Checks.equal(config.get("segment.bytes").source(), ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "its source");
        Checks.equal(config.get("segment.bytes").type(), ConfigEntry.ConfigType.INT, "its type");
        Checks.equal(config.get("retention.ms").value(), "604800000", "default");
        Checks.equal(config.get("retention.ms").source(), ConfigEntry.ConfigSource.DEFAULT_CONFIG, "default's source");
        for (var key : List.of("cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.type",
                "min.insync.replicas", "retention.bytes", "segment.ms", "segment.index.bytes", "index.interval.bytes")) {
            Checks.that(config.get(key) != null && config.get(key).value() != null, key + " is described");
        }
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        var full = cluster.admin.describeConfigs(List.of(of(topic)), options).all().get().get(of(topic));
        Checks.that(!full.get("segment.bytes").synonyms().isEmpty(), "synonyms");
        Checks.equal(full.get("segment.bytes").synonyms().get(0).value(), "2000000", "first synonym");
        Checks.that(!full.get("segment.bytes").documentation().isBlank(), "documentation");
        Checks.throwsError(UnknownTopicOrPartitionException.class, () -> config(cluster, of(topic + "-none")));
    }

    private static void describeBrokerConfigs(Cluster cluster, String name) throws Exception {
        var id = cluster.admin.describeCluster().nodes().get().iterator().next().idString();
        var config = config(cluster, new ConfigResource(ConfigResource.Type.BROKER, id));
        for (var key : List.of("num.partitions", "log.retention.ms", "auto.create.topics.enable", "log.segment.bytes",
                "message.max.bytes", "offsets.topic.num.partitions")) {
            Checks.that(config.get(key) != null, key + " is described");
        }
    }

    private static void alterConfigs(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        alter(cluster, topic, "retention.ms", "5000", AlterConfigOp.OpType.SET);
        Checks.equal(config(cluster, of(topic)).get("retention.ms").value(), "5000", "set");
        alter(cluster, topic, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
        Checks.equal(Set.of(config(cluster, of(topic)).get("cleanup.policy").value().split(",")),
            Set.of("delete", "compact"), "appended");
        alter(cluster, topic, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
        Checks.equal(config(cluster, of(topic)).get("cleanup.policy").value(), "compact", "subtracted");
        alter(cluster, topic, "retention.ms", "", AlterConfigOp.OpType.DELETE);
        var restored = config(cluster, of(topic)).get("retention.ms");
        Checks.equal(restored.value(), "604800000", "deleted, so the default again");
        Checks.equal(restored.isDefault(), true, "is default");
    }

    private static void alter(Cluster cluster, String topic, String key, String value, AlterConfigOp.OpType type)
            throws Exception {
        Collection<AlterConfigOp> ops = List.of(new AlterConfigOp(new ConfigEntry(key, value), type));
        cluster.admin.incrementalAlterConfigs(Map.of(of(topic), ops)).all().get();
    }

    private static void alterRefusals(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        Checks.throwsError(InvalidConfigurationException.class, () -> {
            alter(cluster, topic, "retention.ms", "soon", AlterConfigOp.OpType.SET);
            return null;
        });
        Checks.throwsError(InvalidConfigurationException.class, () -> {
            alter(cluster, topic, "no.such.setting", "1", AlterConfigOp.OpType.SET);
            return null;
        });
        Checks.throwsError(UnknownTopicOrPartitionException.class, () -> {
            alter(cluster, topic + "-none", "retention.ms", "1", AlterConfigOp.OpType.SET);
            return null;
        });
        Collection<AlterConfigOp> ops =
            List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "7"), AlterConfigOp.OpType.SET));
        cluster.admin.incrementalAlterConfigs(
            Map.of(of(topic), ops), new AlterConfigsOptions().validateOnly(true)).all().get();
        Checks.equal(config(cluster, of(topic)).get("retention.ms").value(), "604800000", "only validated");
    }

    private static void listConfigResources(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var listed = cluster.admin.listConfigResources(
            Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions()).all().get();
        Checks.that(listed.contains(of(topic)), "the topic is listed");
    }

    private static void listOffsets(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1, "retention.ms", "-1");
        var partition = Cluster.first(topic);
        cluster.fill(partition, 10, 90_000); // the newest timestamp of all: offset 9, 99,000 ms
        cluster.fill(partition, 5, 20_000);
        Checks.equal(offset(cluster, partition, OffsetSpec.earliest()), 0L, "earliest");
        Checks.equal(offset(cluster, partition, OffsetSpec.latest()), 15L, "latest");
        Checks.equal(offset(cluster, partition, OffsetSpec.forTimestamp(95_000)), 5L, "by time");
        Checks.equal(offset(cluster, partition, OffsetSpec.forTimestamp(99_001)), -1L, "after all");
        Checks.equal(offset(cluster, partition, OffsetSpec.maxTimestamp()), 9L, "max timestamp");
        Checks.equal(offset(cluster, partition, OffsetSpec.earliestLocal()), 0L, "earliest local");
    }

    private static long offset(Cluster cluster, TopicPartition partition, OffsetSpec spec) throws Exception {
        return cluster.admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
    }

    private static void deleteRecords(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        cluster.fill(partition, 10);
        var deleted = cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3)));
        Checks.equal(deleted.lowWatermarks().get(partition).get().lowWatermark(), 3L, "low watermark");
        try (var consumer = cluster.assigned(partition)) {
            Checks.equal(Cluster.read(consumer, 7).get(0).offset(), 3L, "first offset");
        }
        Checks.throwsError(OffsetOutOfRangeException.class, () -> cluster.admin
            .deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all().get());
        var all = cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1)));
        Checks.equal(all.lowWatermarks().get(partition).get().lowWatermark(), 10L, "everything");
    }

    private static void describeLogDirs(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 2);
        cluster.fill(Cluster.first(topic), 1000);
        int broker = cluster.admin.describeCluster().nodes().get().iterator().next().id();
        var dirs = cluster.admin.describeLogDirs(List.of(broker)).allDescriptions().get().get(broker);
        Checks.equal(dirs.size(), 1, "directories");
        var dir = dirs.values().iterator().next();
        Checks.equal(dir.error(), null, "error");
        Checks.that(dir.totalBytes().getAsLong() >= dir.usableBytes().getAsLong(), "sizes of the volume");
        Checks.that(dir.replicaInfos().get(Cluster.first(topic)).size() > 1000, "size of the filled partition");
        Checks.equal(dir.replicaInfos().get(new TopicPartition(topic, 1)).size(), 0L, "size of the empty one");
    }

    private static void electLeaders(Cluster cluster, String topic) throws Exception {
        cluster.topic(topic, 1);
        var partition = Cluster.first(topic);
        var elected = cluster.admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get();
        Checks.that(elected.get(partition).get() instanceof ElectionNotNeededException, "it leads already: " + elected);
    }
}
