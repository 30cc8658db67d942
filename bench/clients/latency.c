/* How long a record takes from produce() to the consumer, at a steady rate, in one process.
 *
 * usage: latency BOOTSTRAP TOPIC RATE SECONDS SIZE LINGER_MS
 *
 * Sends at absolute points in time, so that a slow broker cannot slow the clock that it is measured
 * by: each record carries the moment when it was due. The first seconds are not counted.
 * Prints one JSON object, times in microseconds.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rdkafka.h"

#define WARM_UP_S 5 /* a JVM needs some */
#define NS_PER_S 1000000000LL

static struct {
        const char *bootstrap, *topic, *linger_ms;
        int64_t count, skipped, interval_ns;
        size_t size;
} plan;

static int64_t now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static void sleep_until(int64_t at_ns) {
        struct timespec t = {at_ns / NS_PER_S, at_ns % NS_PER_S};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void die(const char *what, const char *why) {
        fprintf(stderr, "%s: %s\n", what, why);
        exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
        char why[256];
        if (rd_kafka_conf_set(conf, name, value, why, sizeof(why)) != RD_KAFKA_CONF_OK)
                die(name, why);
}

static rd_kafka_t *client(rd_kafka_type_t type) {
        char why[256];
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", plan.bootstrap);
        if (type == RD_KAFKA_PRODUCER) {
                set(conf, "linger.ms", plan.linger_ms);
                set(conf, "acks", "1");
        } else {
                set(conf, "group.id", "latency");
                set(conf, "enable.auto.commit", "false");
        }
        rd_kafka_t *rk = rd_kafka_new(type, conf, why, sizeof(why));
        if (!rk)
                die("client", why);
        return rk;
}

static void *produce(void *unused) {
        (void)unused;
        rd_kafka_t *rk   = client(RD_KAFKA_PRODUCER);
        char *payload    = calloc(1, plan.size);
        int64_t first_ns = now_ns() + NS_PER_S; /* the consumer waits by then */
        for (int64_t i = 0; i < plan.count; i++) {
                int64_t due_ns = first_ns + i * plan.interval_ns;
                sleep_until(due_ns);
                memcpy(payload, &due_ns, sizeof(due_ns));
                rd_kafka_resp_err_t err = rd_kafka_producev(
                    rk, RD_KAFKA_V_TOPIC(plan.topic), RD_KAFKA_V_PARTITION(0),
                    RD_KAFKA_V_VALUE(payload, plan.size), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                    RD_KAFKA_V_END);
                if (err)
                        die("produce", rd_kafka_err2str(err));
                rd_kafka_poll(rk, 0);
        }
        rd_kafka_flush(rk, 60000);
        rd_kafka_destroy(rk);
        free(payload);
        return NULL;
}

static int64_t consume(int64_t *latencies) {
        rd_kafka_t *rk = client(RD_KAFKA_CONSUMER);
        rd_kafka_topic_partition_list_t *partition = rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(partition, plan.topic, 0)->offset = 0;
        rd_kafka_assign(rk, partition);
        int64_t seen = 0;
        int64_t until_ns = now_ns() + plan.count * plan.interval_ns + 60 * NS_PER_S;
        while (seen < plan.count && now_ns() < until_ns) {
                rd_kafka_message_t *message = rd_kafka_consumer_poll(rk, 1000);
                if (!message)
                        continue;
                if (!message->err) {
                        int64_t due_ns;
                        memcpy(&due_ns, message->payload, sizeof(due_ns));
                        latencies[seen++] = now_ns() - due_ns;
                }
                rd_kafka_message_destroy(message);
        }
        rd_kafka_topic_partition_list_destroy(partition);
        rd_kafka_consumer_close(rk);
        rd_kafka_destroy(rk);
        return seen;
}

static int ascending(const void *a, const void *b) {
        int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
        return (x > y) - (x < y);
}

int main(int argc, char **argv) {
        if (argc != 7)
                die("usage", "latency BOOTSTRAP TOPIC RATE SECONDS SIZE LINGER_MS");
        int64_t rate     = atoll(argv[3]);
        plan.bootstrap   = argv[1];
        plan.topic       = argv[2];
        plan.count       = rate * (atoll(argv[4]) + WARM_UP_S);
        plan.skipped     = rate * WARM_UP_S;
        plan.interval_ns = NS_PER_S / rate;
        plan.size        = (size_t)atoll(argv[5]);
        plan.linger_ms   = argv[6];

        int64_t *latencies = calloc((size_t)plan.count, sizeof(*latencies));
        pthread_t producer;
        pthread_create(&producer, NULL, produce, NULL);
        if (consume(latencies) != plan.count)
                die("consume", "records are missing");
        pthread_join(producer, NULL);

        int64_t *counted = latencies + plan.skipped;
        int64_t count    = plan.count - plan.skipped;
        qsort(counted, (size_t)count, sizeof(*counted), ascending);
        printf("{\"p50_us\": %lld, \"p99_us\": %lld, \"p999_us\": %lld, \"max_us\": %lld}\n",
               (long long)counted[count / 2] / 1000, (long long)counted[count * 99 / 100] / 1000,
               (long long)counted[count * 999 / 1000] / 1000, (long long)counted[count - 1] / 1000);
        return 0;
}
