"""Multicast sessions over a network that drops, repeats and reorders; simulated, with its time."""

import heapq
import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.direct.multicast.memory import RememberingSender
from headwater.direct.multicast.packets import (
    DATA,
    FIRST,
    HEADER_BYTES,
    LAST,
    REQUEST,
    Packet,
    decode,
    encode,
    requested,
)
from headwater.direct.multicast.streams import (
    Ended,
    Joined,
    Lost,
    Message,
    Receiver,
    Silent,
)

SENDER = ("127.0.0.1", 1)
PACKET_BYTES = HEADER_BYTES + 10


class Network:
    """One sender, one receiver, and simulated time."""

    def __init__(self, seed: int, *, loss: float, repeat: float, delay_s: float):
        self.chance = random.Random(seed)
        self._loss, self._repeat, self._delay_s = loss, repeat, delay_s
        self._under_way: list[tuple[float, int, bytes]] = []
        self._number = itertools.count()
        self.now_s = 0.0

    def carry(self, packet: bytes) -> None:
        copies = 1 + (self.chance.random() < self._repeat)
        for _ in range(copies):
            if self.chance.random() >= self._loss:
                arrival_s = self.now_s + self.chance.random() * self._delay_s
                heapq.heappush(self._under_way, (arrival_s, next(self._number), packet))

    def arrived(self) -> list[bytes]:
        found = []
        while self._under_way and self._under_way[0][0] <= self.now_s:
            found.append(heapq.heappop(self._under_way)[2])
        return found


def transfer(network: Network, sender: RememberingSender, receiver: Receiver, messages):
    """The events of a whole session, to its end."""
    events: list = []
    left = list(messages)
    for _ in range(20):  # so that the receiver is there before the first message
        network.carry(sender.heartbeat())
    step_s, heartbeat_s = 0.005, 0.0
    while not any(isinstance(event, Ended) for event in events):
        assert network.now_s < 600, "the session does not end"
        network.now_s += step_s
        if left and network.now_s > 1:
            for packet in sender.packets_of(left.pop(0)):
                network.carry(packet)
        elif network.now_s >= heartbeat_s:
            heartbeat_s = network.now_s + 0.05
            network.carry(sender.heartbeat(is_end=not left))
        for datagram in network.arrived():
            packet = decode(datagram)
            if packet.kind == REQUEST:
                for repair in sender.repairs(requested(packet), network.now_s):
                    network.carry(repair)
            else:
                events += receiver.take(datagram, SENDER, network.now_s)
        found, requests = receiver.tick(network.now_s)
        events += found
        for address, request in requests:
            assert address == SENDER
            network.carry(request)
    return events


def check(events, messages, sender):
    """Each packet is part of one message or of one range that is reported as lost, in order."""
    pieces = []
    for message in messages:
        count = max(1, -(-len(message) // (PACKET_BYTES - HEADER_BYTES)))
        pieces += [message] + [None] * (count - 1)
    joined = [event for event in events if isinstance(event, Joined)]
    assert len(joined) == 1
    at = joined[0].sequence
    for event in events:
        if isinstance(event, Message | Lost):
            assert event.first == at, (event, at)
            assert event.last >= event.first
            at = event.last + 1
        if isinstance(event, Message):
            assert pieces[event.first - 1] == event.data
            assert all(piece is None for piece in pieces[event.first : event.last])
            assert event.last == len(pieces) or pieces[event.last] is not None
    assert at == len(pieces) + 1 == sender.last + 1


networks = st.builds(
    Network,
    st.integers(0, 2**32),
    loss=st.floats(0, 0.6),
    repeat=st.floats(0, 0.5),
    delay_s=st.sampled_from([0.0, 0.01, 0.1]),
)
messages_ = st.lists(st.binary(max_size=45), max_size=40)


@settings(max_examples=examples(400), deadline=None)
@given(networks, messages_)
def test_everything_is_repaired_while_the_sender_remembers(network, messages):
    sender = RememberingSender(7, memory_bytes=1 << 20, packet_bytes=PACKET_BYTES)
    receiver = Receiver(from_oldest=True, patience_s=300, chance=network.chance)
    events = transfer(network, sender, receiver, messages)
    assert [event.data for event in events if isinstance(event, Message)] == messages
    assert not any(isinstance(event, Lost) for event in events)
    assert receiver.held_bytes == receiver.begun_bytes == 0


@settings(max_examples=examples(400), deadline=None)
@given(
    networks,
    messages_,
    st.integers(300, 3000),
    st.integers(300, 5000),
    st.sampled_from([0.05, 0.5, 300]),
    st.booleans(),
)
def test_whatever_is_lost_is_reported(
    network, messages, memory_bytes, buffer_bytes, patience_s, from_oldest
):
    sender = RememberingSender(7, memory_bytes=memory_bytes, packet_bytes=PACKET_BYTES)
    receiver = Receiver(
        from_oldest=from_oldest,
        patience_s=patience_s,
        buffer_bytes=buffer_bytes,
        max_message_bytes=40,
        chance=network.chance,
    )
    events = transfer(network, sender, receiver, messages)
    if from_oldest:
        check(events, messages, sender)
    else:  # it may have joined late, in the middle of a message
        lost_or_not = [event for event in events if isinstance(event, Message | Lost)]
        for before, after in itertools.pairwise(lost_or_not):
            assert after.first == before.last + 1
        assert not lost_or_not or lost_or_not[-1].last == sender.last
    assert receiver.held_bytes == receiver.begun_bytes == 0


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.binary(max_size=80) | st.builds(
    lambda *fields: encode(Packet(*fields)),
    st.integers(1, 3), st.integers(0, 255), st.integers(1, 3), st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1), st.binary(max_size=40),
)))  # fmt: skip
def test_any_bytes_are_no_harm(datagrams):
    receiver = Receiver(buffer_bytes=4096, max_message_bytes=100)
    sender = RememberingSender(1, memory_bytes=4096, packet_bytes=PACKET_BYTES)
    for now_s, datagram in enumerate(datagrams):
        receiver.take(datagram, SENDER, now_s)
        receiver.tick(now_s)
        packet = decode(datagram)
        if packet is not None:
            list(sender.repairs(requested(packet), now_s))
        assert receiver.held_bytes <= 4096 + 300
    receiver.close()
    assert receiver.held_bytes == 0


def data(session, sequence, message, oldest=1, flags=FIRST | LAST):
    return encode(Packet(DATA, flags, session, sequence, oldest, message))


def test_a_restarted_sender_is_another_session():
    receiver = Receiver()
    assert receiver.take(data(1, 1, b"a"), SENDER, 0) == [Joined(1, 1, 1), Message(1, 1, 1, b"a")]
    assert receiver.take(data(2, 1, b"b"), SENDER, 0) == [Joined(2, 1, 1), Message(2, 1, 1, b"b")]
    assert receiver.take(data(1, 3, b"c"), SENDER, 0) == []
    events, requests = receiver.tick(1)
    assert events == []
    assert [(address, requested(decode(request))) for address, request in requests] == [
        (SENDER, [(2, 2)])
    ]
    assert receiver.close() == [Lost(1, 2, 2, "the receiver stopped"), Message(1, 3, 3, b"c")]


def test_a_late_receiver_begins_with_the_next_whole_message():
    receiver = Receiver()
    events = receiver.take(data(1, 8, b"end of one", flags=LAST), SENDER, 0)
    events += receiver.take(data(1, 9, b"next"), SENDER, 0)
    assert events == [Joined(1, 8, 1), Message(1, 9, 9, b"next")]


def test_a_lost_last_packet_is_noticed_by_the_heartbeat():
    sender = RememberingSender(1, memory_bytes=1 << 20, packet_bytes=PACKET_BYTES)
    receiver = Receiver()
    receiver.take(sender.heartbeat(), SENDER, 0)
    (packet,) = sender.packets_of(b"last")
    assert receiver.take(sender.heartbeat(is_end=True), SENDER, 0.1) == []
    _, [(_, request)] = receiver.tick(0.2)
    (repair,) = sender.repairs(requested(decode(request)), 0.2)
    assert receiver.take(repair, SENDER, 0.3) == [Message(1, 1, 1, b"last"), Ended(1, 1)]
    assert packet != repair  # it says that it is sent again


def test_a_silent_sender_is_reported_once():
    receiver = Receiver()
    receiver.take(data(1, 1, b"a"), SENDER, 0)
    assert receiver.tick(29)[0] == []
    assert receiver.tick(31)[0] == [Silent(1, 1)]
    assert receiver.tick(32)[0] == []
    assert receiver.take(data(1, 2, b"b"), SENDER, 33) == [Message(1, 2, 2, b"b")]


def test_repairs_are_not_repeated_for_every_receiver_that_asks():
    sender = RememberingSender(1, memory_bytes=1 << 20, packet_bytes=PACKET_BYTES)
    for number in range(5):
        list(sender.packets_of(b"%d" % number))
    assert len(list(sender.repairs([(2, 4)], 1.0))) == 3
    assert list(sender.repairs([(2, 4)], 1.001)) == []
    assert len(list(sender.repairs([(2, 4)], 1.1))) == 3
