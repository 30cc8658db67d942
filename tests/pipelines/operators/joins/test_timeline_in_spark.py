"""Table–table joins in Spark: through three shuffles, over restarts, and as one bounded run."""

import pytest
from support.pipelines.project import Project
from tiers import long

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.verification.stores import verify

PIPELINE = """
    posts = flow.changes("posts", "post bigint, author string, text string")
    follows = flow.changes("follows", "follow bigint, follower string, author string")
    timelines = hw.join_tables(follows, posts, on="author", left_key="follow", right_key="post")
    flow.write(timelines, to="cache", table="timelines", key=["follow", "post"])
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


def post(number, author, text):
    return {"post": number, "author": author, "text": text}


def follow(number, follower, author):
    return {"follow": number, "follower": follower, "author": author}


@long
def test_timelines_follow_posts_and_follows_over_restarts(spark, project):
    project.topic("posts", 2)
    project.topic("follows", 2)
    project.pipeline("timelines", PIPELINE)

    def timelines():
        found = project.rows("SELECT follower, post, author, text FROM timelines")
        assert len(found) == len(set(found))
        return {(follower, number): (author, text) for follower, number, author, text in found}

    def run(posts, follows):
        project.produce("posts", *posts, key="post")
        project.produce("follows", *follows, key="follow")
        with project.running(spark, "timelines"):
            project.wait_until_at_end(spark, "posts", "timelines")
            project.wait_until_at_end(spark, "follows", "timelines")
        return timelines()

    found = run(
        [post(number, f"a{number % 3}", f"text {number}") for number in range(30)],
        [follow(1, "bob", "a0"), follow(2, "bob", "a1"), follow(3, "cleo", "a1")],
    )
    assert sorted(number for who, number in found if who == "bob") == [
        number for number in range(30) if number % 3 in (0, 1)
    ]
    found = run(
        [post(0, "a0", "edited"), {"post": 3, "_deleted": True}, post(4, "a0", "moved")],
        [{"follow": 2, "_deleted": True}, follow(3, "cleo", "a2")],
    )
    expected = {0: "edited", 4: "moved"} | {n: f"text {n}" for n in range(6, 30, 3)}
    assert {number: text for (who, number), (_, text) in found.items() if who == "bob"} == expected
    assert {author for (who, _), (author, _) in found.items() if who == "cleo"} == {"a2"}
    assert verify(project.pipelines(spark, "timelines")[0], "cache/timelines").is_equal


PLACE = "_op string, _position struct<topic: string, partition: int, offset: bigint>"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"right_key": "nobody"}, "no column nobody"),
        ({"on": "nobody"}, "no column nobody"),
        ({"right_key": []}, "right_key is empty"),
        ({"on": []}, "does not name columns"),
        ({"on": [("follow", "post")]}, "both tables have a column author"),
        ({"on": ["author", ("follow", "text")]}, "different types"),
        ({"how": "outer"}, "how='outer'"),
    ],
)
def test_what_cannot_be_joined_is_an_error_when_the_frame_is_made(spark, asked, message):
    follows = spark.createDataFrame([], f"follow int, follower string, author string, {PLACE}")
    posts = spark.createDataFrame([], f"post bigint, author string, text string, {PLACE}")
    right = {"on": "author", "left_key": "follow", "right_key": "post"}
    with pytest.raises(PipelineError) as raised:
        hw.join_tables(follows, posts, **{**right, **asked})
    assert message in str(raised.value)
    with pytest.raises(PipelineError, match="no column _op"):
        hw.join_tables(follows.drop("_op"), posts, **right)


def test_the_result_has_join_columns_once_and_integers_as_the_larger(spark):
    follows = spark.createDataFrame([], f"follow int, who int, {PLACE}")
    posts = spark.createDataFrame([], f"post bigint, who bigint, text string, {PLACE}")
    joined = hw.join_tables(follows, posts, on="who", left_key="follow", right_key="post")
    assert joined.columns == ["follow", "who", "post", "text", "_op", "_position"]
    assert dict(joined.dtypes)["who"] == "bigint"
