import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

/** A member of a group that polls on a thread of its own, as an application's would. */
final class Member implements AutoCloseable {
    interface Subscription {
        void apply(Consumer<byte[], byte[]> consumer, ConsumerRebalanceListener listener);
    }

    final ConcurrentLinkedQueue<String> values = new ConcurrentLinkedQueue<>();
    final AtomicInteger assignments = new AtomicInteger();
    private final Consumer<byte[], byte[]> consumer;
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile Set<Integer> partitions = Set.of();
    private volatile Set<String> topics = Set.of();
    private volatile boolean closing;
    private volatile CloseOptions.GroupMembershipOperation leaving = CloseOptions.GroupMembershipOperation.DEFAULT;
    private volatile Exception failure;

    Member(Consumer<byte[], byte[]> consumer, String topic) {
        this(consumer, (c, listener) -> c.subscribe(List.of(topic), listener));
    }

    Member(Consumer<byte[], byte[]> consumer, Subscription subscription) {
        this.consumer = consumer;
        var thread = new Thread(() -> run(subscription));
        thread.setDaemon(true);
        thread.start();
    }

    private void run(Subscription subscription) {
        try {
            subscription.apply(consumer, new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> added) {
                    assignments.incrementAndGet();
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> removed) {}
            });
            while (!closing) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.add(Cluster.text(record.value())));
                var numbers = new TreeSet<Integer>();
                var names = new TreeSet<String>();
                consumer.assignment().forEach(p -> {
                    numbers.add(p.partition());
                    names.add(p.topic());
                });
                partitions = numbers;
                topics = names;
            }
        } catch (WakeupException closed) {
            // close() was called
        } catch (Exception failed) {
            failure = failed;
        } finally {
            consumer.close(CloseOptions.timeout(Duration.ofSeconds(10)).withGroupMembershipOperation(leaving));
            ended.countDown();
        }
    }

    Set<Integer> partitions() {
        return partitions;
    }

    Set<String> topics() {
        return topics;
    }

    Exception failure() {
        return failure;
    }

    /** Waits until together they hold each of the partitions exactly once, each at least `atLeast`. */
    static void share(List<Member> members, int partitionCount, int atLeast) throws Exception {
        Supplier<String> what = () -> members.size() + " members share " + partitionCount + " partitions, they hold "
            + members.stream().map(Member::partitions).toList();
        Checks.eventually(what, () -> {
            var held = new ArrayList<Integer>();
            for (var member : members) {
                if (member.failure != null) {
                    throw member.failure;
                }
                if (member.partitions.size() < atLeast) {
                    return false;
                }
                held.addAll(member.partitions);
            }
            return held.size() == partitionCount && Set.copyOf(held).size() == partitionCount;
        });
    }

    /** Goes away without saying so, as if its machine had been lost. */
    void vanish() throws InterruptedException {
        leaving = CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP;
        close();
    }

    @Override
    public void close() throws InterruptedException {
        closing = true;
        consumer.wakeup();
        ended.await(15, TimeUnit.SECONDS);
    }
}
