"""Direct messaging: programs that speak no Kafka write to topics and read from them, without HTTP.

    files/       a file that grows, exactly once          headwater produce T -f FILE --follow
    statsd/      metrics over UDP, aggregated             [gateway.statsd]
    multicast/   UDP multicast with retransmission        headwater multicast send | receive
    zeromq/      PUB/SUB and PUSH/PULL                    [gateway.zeromq.NAME]

What is configured in [gateway] runs in the gateway's process (service.py).
"""
