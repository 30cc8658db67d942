"""What `headwater up` shows on a terminal."""

from types import SimpleNamespace

from headwater import config
from headwater.cli.up_view import TextView
from headwater.supervisor import told


def test_what_is_not_ready_yet_stays_on_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"capture number {number}" for number in range(9)]
    children = [
        SimpleNamespace(plan=SimpleNamespace(name=name), told=told.ChildTold(name, "capture"))
        for name in names
    ]
    shown = []
    output = SimpleNamespace(status=shown.append, write=lambda text: None)
    TextView(output, config.load(environ={}), names).tick(children)
    assert shown[0].startswith("0 s, not ready yet: capture number 0 (waits for the broker)")
    assert len(shown[0]) == 59
