"""Sphinx' settings for the site of docs/ (tools/build_site.py)."""

from pathlib import Path

import headwater

project = "Headwater"
version = release = headwater.__version__
extensions = ["myst_parser"]
root_doc = "index"
myst_heading_anchors = 4  # as GitHub makes them: page.md#a-heading
suppress_warnings = ["misc.highlighting_failure", "myst.header"]
highlight_language = "text"
pygments_style = "sphinx"

html_theme = "theme"
html_theme_path = [str(Path(__file__).parent)]
html_title = "Headwater"
html_copy_source = False
html_use_index = False
html_permalinks_icon = "#"
html_favicon = str(Path(headwater.__file__).parent / "console/static/icon.svg")
