"""A file that cannot be read is its author's mistake: told with its line, and not tried again."""

import pytest

from headwater import config
from headwater.errors import ConfigError
from headwater.pipelines.pipeline import load


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import headwater\n\ndef orders(flow\n", "orders.py:3: '(' was never closed"),
        ("x = 1\nraise RuntimeError('boom')\n", "orders.py:2: RuntimeError: boom"),
    ],
)
def test_the_line_is_told(tmp_path, source, told):
    (tmp_path / "orders.py").write_text(source)
    (tmp_path / "headwater.toml").write_text('[pipeline.orders]\nfile = "orders.py"\n')
    loaded = config.load(path=str(tmp_path / "headwater.toml"), environ={})
    with pytest.raises(ConfigError) as caught:
        load(loaded.pipelines["orders"], tmp_path)
    assert str(caught.value) == f"pipeline orders: {told}"
    assert caught.value.exit_code == 2
    assert str(tmp_path / "orders.py") in caught.value.hint
