import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The broker under test, and clients of it with their defaults unless a check says otherwise. */
final class Cluster {
    private final String bootstrap;
    final Admin admin;

    Cluster(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(settings());
    }

    String bootstrap() {
        return bootstrap;
    }

    private Properties settings(String... pairs) {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("default.api.timeout.ms", "30000");
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put(pairs[i], pairs[i + 1]);
        }
        return settings;
    }

    Producer<byte[], byte[]> producer(String... pairs) {
        var settings = settings(pairs);
        settings.remove("default.api.timeout.ms");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    /** A consumer that reads from the beginning when it has no position. */
    Consumer<byte[], byte[]> consumer(String... pairs) {
        var settings = settings("auto.offset.reset", "earliest");
        settings.putAll(settings(pairs));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    Consumer<byte[], byte[]> assigned(TopicPartition partition, String... pairs) {
        var consumer = consumer(pairs);
        consumer.assign(List.of(partition));
        return consumer;
    }

    void topic(String name, int partitions, String... pairs) throws Exception {
        var configs = new java.util.HashMap<String, String>();
        for (int i = 0; i < pairs.length; i += 2) {
            configs.put(pairs[i], pairs[i + 1]);
        }
        var topic = new NewTopic(name, partitions, (short) 1).configs(configs);
        admin.createTopics(List.of(topic)).all().get(30, TimeUnit.SECONDS);
        // Kafka's controller has it now; its broker may hear of it a moment later
        Checks.eventually("topic " + name + " can be written to", () -> writable(name, partitions));
    }

    private boolean writable(String name, int partitions) throws Exception {
        try {
            var described = admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions();
            return described.size() == partitions && described.stream().allMatch(p -> p.leader() != null);
        } catch (ExecutionException notYet) {
            if (notYet.getCause() instanceof UnknownTopicOrPartitionException) {
                return false;
            }
            throw notYet;
        }
    }

    /** Writes the values "0", "1", … to one partition. */
    void fill(TopicPartition to, int count) throws Exception {
        fill(to, count, System.currentTimeMillis());
    }

    /** The same, a second apart. Times long ago are for topics that retain their records indefinitely. */
    void fill(TopicPartition to, int count, long firstTimestamp) throws Exception {
        try (var producer = producer()) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(
                    to.topic(), to.partition(), firstTimestamp + 1000L * i, null, bytes("" + i)));
            }
        }
    }

    /** Polls until `count` records have come. */
    static List<ConsumerRecord<byte[], byte[]>> read(Consumer<byte[], byte[]> consumer, int count) {
        var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (records.size() < count) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("only " + records.size() + " of " + count + " records came, assigned: "
                    + consumer.assignment());
            }
            consumer.poll(Duration.ofMillis(100)).forEach(records::add);
        }
        Checks.equal(records.size(), count, "records");
        return records;
    }

    static List<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(record -> text(record.value())).toList();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    static TopicPartition first(String topic) {
        return new TopicPartition(topic, 0);
    }
}
