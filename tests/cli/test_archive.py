"""What lies where, as `headwater topic describe` and `headwater status` show it."""

from .conftest import Cli, running_broker, unique, wait_until


def test_describe_shows_what_lies_where(tmp_path, forked_commands):
    data_dir, archive = tmp_path / "data", tmp_path / "archive"
    data_dir.mkdir()
    archive.mkdir()
    (data_dir / "headwater.toml").write_text(f'[broker]\narchive = "file://{archive}"\n')
    options = ("--metrics-listen", "127.0.0.1:0")
    with running_broker(data_dir, *options) as (_, ready):
        cli = Cli(ready["listen"], tmp_path, forked_commands)
        topic = unique("archived")
        configs = ["-c", "remote.storage.enable=true", "-c", "segment.bytes=20000"]
        cli("topic", "create", topic, *configs)
        lines = "".join(f"{number:05d}{'x' * 995}\n" for number in range(200))
        for _ in range(3):
            cli("produce", topic, stdin=lines.encode())

        def described():
            return cli.json("topic", "describe", topic)[0]["partitions"][0]

        assert described()["archive"]["url"] == f"file://{archive}"
        wait_until(lambda: described()["archive"]["records_not_archived"] < 300)
        found = described()
        assert found["archive"]["url"] == f"file://{archive}"
        assert found["archive"]["size_bytes"] > 300_000
        assert found["archive"]["local_start_offset"] == 0
        assert found["size_bytes"] > found["archive"]["size_bytes"]
        shown = cli("topic", "describe", topic)
        assert f"archived in file://{archive}" in shown
        metrics = ready["metrics_listen"]
        state = cli.json("status", "--metrics", metrics)
        assert state["archive"]["size_bytes"] == found["archive"]["size_bytes"]
        assert not state["archive"]["is_failing"]
        assert "archive " in cli("status", "--metrics", metrics)


def test_what_is_not_archived_says_nothing_of_it(cli, topic):
    (described,) = cli.json("topic", "describe", topic)
    assert described["partitions"][0]["archive"] is None
    assert "archived" not in cli("topic", "describe", topic)
