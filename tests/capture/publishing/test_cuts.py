"""What a capture publishes of its cuts: whole transactions, also after compaction and restarts."""

from headwater.capture.publishing.cuts import Cuts, decode, keys_of

ORDERS, ITEMS = ("shop.orders", 0), ("shop.items", 0)


def published(cuts: Cuts, written_ms: int) -> list[tuple[str, dict]]:
    """The records of a transaction: the last part of each key, and its ends."""
    return [
        (key.decode().rpartition("/")[2], dict(decode(key, value).ends))
        for key, value in cuts.records(written_ms)
    ]


def test_a_cut_has_the_offsets_around_its_transaction():
    cuts = Cuts("shop", {})
    cuts.sent({ORDERS: 7, ITEMS: 13}, {ORDERS: 2, ITEMS: 3})
    assert published(cuts, 5_000) == [("5", {ORDERS: (5, 8), ITEMS: (10, 14)})]
    assert published(cuts, 5_100) == [("all", {ORDERS: (8, 8), ITEMS: (14, 14)})], "as it was"
    assert published(cuts, 5_200) == [], "nothing was sent"


def test_the_last_cut_of_a_second_has_all_of_this_second():
    cuts = Cuts("shop", {})
    cuts.sent({ORDERS: 7}, {ORDERS: 2})
    cuts.records(5_000)
    cuts.sent({ITEMS: 3, ORDERS: 10}, {ITEMS: 3, ORDERS: 2})
    assert published(cuts, 5_900)[-1] == ("5", {ORDERS: (5, 11), ITEMS: (0, 4)})
    cuts.sent({ITEMS: 6}, {ITEMS: 2})
    assert published(cuts, 6_000) == [("6", {ITEMS: (4, 7)})]


def test_parts_of_a_transaction_have_one_cut_behind_the_last():
    cuts = Cuts("shop", {})
    cuts.sent({ORDERS: 4}, {ORDERS: 4})
    cuts.sent({ORDERS: 9, ITEMS: 1}, {ORDERS: 5, ITEMS: 1})
    assert published(cuts, 5_000) == [("5", {ORDERS: (0, 10), ITEMS: (0, 2)})]


def test_all_ends_are_published_at_the_start_and_every_hour():
    before = Cuts("shop", {})
    before.sent({ORDERS: 4}, {ORDERS: 4})
    stored = dict(before.records(1_000))
    before.sent({ORDERS: 9}, {ORDERS: 4})
    stored |= dict(before.records(2_000))
    stored |= {b"other/3": next(iter(stored.values())), b"shop/x/3": b"{}", b"shop/4": b"broken"}
    cuts = Cuts("shop", stored)
    assert published(cuts, 10_000) == [("all", {ORDERS: (10, 10)})]
    cuts.sent({ITEMS: 3}, {ITEMS: 3})
    hour = 3_600_000
    assert published(cuts, 10_000 + hour) == [
        ("all", {ORDERS: (10, 10)}),
        (str((10_000 + hour) // 1000), {ITEMS: (0, 4)}),
    ]


def test_a_partition_whose_offset_was_not_reported_is_left_out():
    cuts = Cuts("shop", {})
    cuts.sent({ORDERS: -1, ITEMS: 3}, {ORDERS: 1, ITEMS: 1})
    assert published(cuts, 0) == [("0", {ITEMS: (2, 4)})]


def test_what_is_no_cut_is_passed_over():
    for value in (None, b"", b"[]", b"{}", b'{"written_ms": 1, "ends": [["t", 0]]}', b"\xff"):
        assert decode(b"shop/1", value) is None
    assert decode(None, b"{}") is None
    assert decode(b"shop", b'{"written_ms": 1, "ends": []}') is None
    assert keys_of("shop", {b"shop/1": b"", b"shopping/1": b"", b"shop/a/1": b""}) == [b"shop/1"]
