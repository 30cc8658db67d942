"""hw.join in Spark: what it refuses before anything runs, and two pipelines over the log."""

import pytest
from support.pipelines.project import Project

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.verification.stores import verify

LOG = "_op string, _at timestamp, _position struct<topic string, partition int, offset bigint>"


@pytest.fixture(scope="module")
def frames(spark):
    def frame(columns):
        return spark.createDataFrame([], f"{columns}, {LOG}")

    return frame


SEARCHES = "id bigint, user string, searched_at timestamp"
CLICKS = "id bigint, url string, clicked_at timestamp"
TIMES = {"left_time": "searched_at", "right_time": "clicked_at"}


def joined(frames, left=SEARCHES, right=CLICKS, **given):
    settings = {"on": "id", "within": "1 hour", **TIMES, **given}
    return hw.join(frames(left), frames(right), **settings)


def test_columns_of_the_result(frames):
    assert joined(frames).columns == [
        *("id", "user", "searched_at", "url", "clicked_at"),
        *("_op", "_at", "_position"),
    ]
    pairs = joined(frames, right="search bigint, clicked_at timestamp", on=[("id", "search")])
    assert pairs.columns[:5] == ["id", "user", "searched_at", "search", "clicked_at"]
    suffixed = joined(
        frames,
        right=SEARCHES,
        suffixes=("", "_again"),
        right_time="searched_at",
    )
    assert suffixed.columns[:5] == ["id", "user", "searched_at", "user_again", "searched_at_again"]


def test_integers_of_different_sizes_become_the_larger(frames):
    found = joined(frames, right="id int, url string, clicked_at timestamp").schema["id"]
    assert found.dataType.simpleString() == "bigint"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on": "nope"}, "has no column nope"),
        ({"on": []}, "does not name columns"),
        ({"right": "id string, clicked_at timestamp"}, "keys of different types"),
        (
            {
                "left": "id double, searched_at timestamp",
                "right": "id double, clicked_at timestamp",
            },
            "no type for a key",
        ),
        ({"right": f"{CLICKS}, user string"}, "both sides have a column user"),
        (
            {"right": f"{CLICKS}, user string, user_b string", "suffixes": ("", "_b")},
            "two columns of the result would be called user_b",
        ),
        ({"how": "outer"}, "how='outer'"),
        ({"late": "correct"}, "not for joins"),
        ({"late": "never"}, "late='never'"),
        ({"within": "soon"}, "is no duration"),
        ({"within": ("1 hour", "later")}, "is no duration"),
        ({"left_time": "user"}, "is no timestamp"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(frames, given, said):
    with pytest.raises(PipelineError, match=said):
        joined(frames, **given)


def test_a_frame_without_positions(frames):
    with pytest.raises(PipelineError, match="right side has no column _position"):
        hw.join(frames(SEARCHES), frames(CLICKS).drop("_position"), "id", "1 hour", **TIMES)


PIPELINES = {
    "searched": """
        searches = flow.changes("searches", "id int, word string, searched_at timestamp")
        clicks = flow.changes("clicks", "id string, search bigint, clicked_at timestamp")
        found = hw.join(
            searches, clicks.withColumnRenamed("id", "click"), on=[("id", "search")],
            within=("1 minute", "1 hour"), how="left",
            left_time=hw.event_time("searched_at", delay="0 s", future=None),
            right_time=hw.event_time("clicked_at", delay="1 hour", future=None),
        ).withColumn("click", F.coalesce("click", F.lit("")))
        flow.write(found, to="cache", table="searched", key=["id", "click"])
    """,
    "paired": """
        searches = flow.changes("searches", "id int, word string, searched_at timestamp")
        time = hw.event_time("searched_at", delay="0 s", future=None)
        found = hw.join(
            searches, searches, on="word", within="20 minutes", suffixes=("", "_other"),
            left_time=time, right_time=time,
        ).where("id < id_other")
        flow.write(found, to="cache", table="paired", key=["id", "id_other"])
    """,
}


def test_pipelines_that_join_streams(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("searches", 2)
    project.topic("clicks", 3)
    for name, body in PIPELINES.items():
        project.pipeline(name, body)

    def moment(minute):
        return f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"

    searches = [{"id": n, "word": f"w{n % 4}", "searched_at": moment(n * 5)} for n in range(24)]
    clicks = [
        {"id": f"c{n}", "search": n // 2, "clicked_at": moment(n // 2 * 5 + n % 2 * 50)}
        for n in range(48)
        if n // 2 % 3
    ]
    # Every partition has a first word, from which on it counts, and a last one, by which time
    # comes to 20:00.
    starts = [{"id": 100 + n, "word": f"s{n}", "searched_at": moment(0)} for n in range(40)]
    click_starts = [{"id": f"s{n}", "search": 4000 + n, "clicked_at": moment(0)} for n in range(40)]
    ends = [{"id": 1000 + n, "word": f"e{n}", "searched_at": moment(1200)} for n in range(40)]
    click_ends = [
        {"id": f"e{n}", "search": 5000 + n, "clicked_at": moment(1200)} for n in range(40)
    ]
    project.produce("searches", *starts)
    project.produce("clicks", *click_starts)
    with project.running(spark, *PIPELINES):
        project.produce("clicks", *clicks[:20])  # clicks before searches
        project.wait_until_at_end(spark, "clicks", "searched")
        project.produce("searches", *searches[:12])
        project.wait_until_at_end(spark, "searches", *PIPELINES)
    with project.running(spark, *PIPELINES):
        project.produce("searches", *searches[12:], *ends)
        project.produce("clicks", *clicks[20:], *click_ends)
        project.wait_until_at_end(spark, "searches", *PIPELINES)
        project.wait_until_at_end(spark, "clicks", "searched")
    found = project.rows("SELECT id, click FROM searched")
    wanted = {(n // 2, f"c{n}") for n in range(48) if n // 2 % 3}
    wanted |= {(n, "") for n in (*range(0, 24, 3), *range(100, 140))}
    assert set(found) == wanted
    pairs = project.rows("SELECT id, id_other FROM paired")
    assert set(pairs) == {(n, n + 4) for n in range(20)}  # 20 minutes lie between
    for name in PIPELINES:
        assert verify(project.pipelines(spark, name)[0], f"cache/{name}").is_equal
