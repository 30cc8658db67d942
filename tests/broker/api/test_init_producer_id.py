"""InitProducerId: an id that no producer had before."""

import pytest
from support.wire import Wire, wait_until

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.init_producer_id import InitProducerIdRequest
from headwater.testing import FaultyFiles, InProcessBroker


def _new_id(client: Wire, version: int = 4, **fields) -> int:
    answer = client.ask(InitProducerIdRequest(transactional_id=None, **fields), version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)
    return answer.producer_id


@pytest.mark.parametrize("crash", [True, False])
def test_never_the_same_twice(tmp_path, crash):
    broker = InProcessBroker(str(tmp_path))
    broker.start()
    ids = []
    for _ in range(3):
        with Wire(broker.bootstrap) as client:
            ids += [_new_id(client, version) for version in range(6)]
            ids.append(_new_id(client, producer_id=ids[-1], producer_epoch=0))
        broker.restart(crash=crash)
    assert len(set(ids)) == len(ids) == 21
    assert min(ids) >= 0
    broker.stop()


def test_more_than_a_block_of_them_from_many_at_once(tmp_path):
    with InProcessBroker.serving(str(tmp_path)) as broker:
        clients = [Wire(broker.bootstrap) for _ in range(10)]
        for client in clients:
            for _ in range(210):
                client.send(InitProducerIdRequest(transactional_id=None), 4)
        ids = {client.receive().producer_id for client in clients for _ in range(210)}
        assert len(ids) == 2100
        for client in clients:
            client.close()


def test_a_transactional_id_keeps_its_producer_id(tmp_path):
    broker = InProcessBroker(str(tmp_path))
    broker.start()
    request = InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=1000)
    found = []
    for version in range(6):
        with Wire(broker.bootstrap) as client:
            answer = client.ask(request, version)
            assert answer.error_code == 0
            found.append((answer.producer_id, answer.producer_epoch))
        if version in (2, 4):
            broker.restart(crash=version == 4)
            wait_until(lambda: broker.running.broker.transactions._refusal is None)
    producer_id = found[0][0]
    assert found == [(producer_id, epoch) for epoch in range(6)]
    broker.stop()


def test_a_full_disk_is_reported_as_a_retriable_error(tmp_path):
    files = FaultyFiles()
    broker = InProcessBroker(str(tmp_path), files=files)
    broker.start()
    with Wire(broker.bootstrap) as client:
        files.room_bytes = 0
        answer = client.ask(InitProducerIdRequest(transactional_id=None), 4)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        files.repair()
        assert _new_id(client) >= 0
    broker.stop()
