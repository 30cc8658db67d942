"""What `headwater up` shows on a terminal."""

from types import SimpleNamespace

import pytest

from headwater import config
from headwater.cli.up_view import TextView
from headwater.supervisor import status_file


def test_what_is_not_ready_yet_stays_on_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"capture number {number}" for number in range(9)]
    children = [
        SimpleNamespace(
            plan=SimpleNamespace(name=name), status=status_file.ChildStatus(name, "capture")
        )
        for name in names
    ]
    shown = []
    output = SimpleNamespace(status=shown.append, write=lambda text: None)
    TextView(output, config.load(environ={}), names).tick(children)
    assert shown[0].startswith("0 s, not ready yet: capture number 0 (waits for the broker)")
    assert len(shown[0]) == 59


@pytest.mark.parametrize(("place", "given"), [("here", ""), ("a shop", " --config '{path}'")])
def test_what_it_says_to_try_names_a_file_that_is_elsewhere(tmp_path, monkeypatch, place, given):
    path = tmp_path / place / config.FILE_NAME
    path.parent.mkdir()
    path.write_text('[pipeline.orders]\nfile = "orders.py"\n')
    (tmp_path / "here").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "here")
    loaded = config.load(path=None if place == "here" else str(path), environ={})
    written = []
    output = SimpleNamespace(status=lambda text: None, write=written.append)
    TextView(output, loaded, ["pipelines"]).all_ready([])
    lines = [line.strip() for line in written[-1].splitlines()]
    assert f"headwater verify orders{given.format(path=path)}" in lines
