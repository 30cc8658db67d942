"""`transactions` of a pipeline: whether its batches wait for a boundary between transactions."""

import uuid

import pytest
from support.pipelines.project import Project

from headwater.pipelines.engine.cuts import FollowedCuts

BODY = """
    orders = flow.changes("{orders}", "id bigint")
    customers = flow.changes("{customers}", "id bigint").selectExpr("-id AS id", "_op", "_position")
    both = orders.selectExpr("id", "_op", "_position").union(customers)
    flow.write(both, to="cache", table="{table}", key="id")
"""


@pytest.mark.timeout(300)
def test_a_topic_that_is_late_delays_the_others_unless_any_part_of_a_transaction_may_be_seen(
    spark, tmp_path, broker_address, monkeypatch
):
    project = Project(tmp_path, broker_address)
    topics = {
        name: project.topic(f"{name}-{uuid.uuid4().hex[:8]}") for name in ("orders", "customers")
    }
    for setting in ("whole", "any"):
        project.pipeline(
            setting, BODY.format(table=f"of_{setting}", **topics), transactions=setting
        )

    def until_customers_arrive(_cuts, starts, _ends, _most_rows):
        return dict(starts)  # no later cut is complete

    with project.running(spark, "whole", "any"):
        with monkeypatch.context() as patched:
            patched.setattr(FollowedCuts, "limits", until_customers_arrive)
            project.produce(topics["orders"], {"id": 1}, {"id": 2})
            project.wait_until_at_end(spark, topics["orders"], "any")
            assert project.rows("SELECT id FROM of_any ORDER BY id") == [(1,), (2,)]
            assert project.rows("SELECT id FROM of_whole") == []
        project.produce(topics["customers"], {"id": 1})
        project.wait_until_at_end(spark, topics["customers"], "whole", "any")
    for table in ("of_whole", "of_any"):
        assert project.rows(f"SELECT id FROM {table} ORDER BY id") == [(-1,), (1,), (2,)]
