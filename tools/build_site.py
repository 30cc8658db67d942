"""Builds the site from docs/: `python tools/build_site.py`, into the package of the console.

The pages are the Markdown of the repository. This stages them in .work/site, with links adapted:
pages outside of docs/ (ARCHITECTURE.md, examples) become pages of the site, other files of the
repository become downloads. The navigation is docs/index.md: its headings, and the links in them.
Sphinx then reads only what has changed.
"""

import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGED = ROOT / ".work/site/pages"
DOCTREES = ROOT / ".work/site/doctrees"
OUTPUT = ROOT / "src/headwater/console/site"
INDEX = "docs/index.md"
OUTSIDE = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/bank/README.md": "examples/bank.md",
    "examples/live/README.md": "examples/live.md",
    "examples/shop/README.md": "examples/shop.md",
}
RENAMED = {"docs/search.md": "stored-search.md"}  # Sphinx' own page is called search
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def pages() -> dict[str, str]:
    """Path in the repository, and path in the site."""
    inside = sorted((ROOT / "docs").rglob("*.md"))
    found = {str(path.relative_to(ROOT)): str(path.relative_to(ROOT / "docs")) for path in inside}
    return {**found, **RENAMED, **OUTSIDE}


def navigation() -> dict[str, list[str]]:
    """Pages of the site (without suffix) by heading of the index."""
    sections: dict[str, list[str]] = {}
    for line in (ROOT / INDEX).read_text().splitlines():
        if line.startswith("## "):
            sections[line[3:]] = []
        elif sections:
            sites = pages()
            for target in LINK.finditer(line):
                path = _in_repository(INDEX, target["target"])
                if path in sites:
                    section = sections[next(reversed(sections))]
                    section.append(sites[path].removesuffix(".md"))
    return sections


def stage() -> None:
    """Writes what has changed, removes what is no longer there."""
    sites = pages()
    wanted = {}
    for source, page in sites.items():
        text = (ROOT / source).read_text()
        files: dict[str, Path] = {}
        text = LINK.sub(partial(_adapted, source, page, files), text)
        if source == INDEX:
            text += "".join(_toctree(*section) for section in navigation().items())
        wanted[page] = text.encode()
        wanted.update({name: path.read_bytes() for name, path in files.items()})
    for name, content in wanted.items():
        path = STAGED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
    for path in STAGED.rglob("*"):
        if path.is_file() and str(path.relative_to(STAGED)) not in wanted:
            path.unlink()


def _adapted(source: str, page: str, files: dict[str, Path], match: re.Match[str]) -> str:
    target = _in_repository(source, match["target"])
    path = ROOT / target
    if path.is_dir() and (path / "README.md").is_file():
        target += "/README.md"
    up = "../" * page.count("/")
    if target in pages() or target == "README.md":
        return up + pages().get(target, "index.md") + (match["anchor"] or "")
    if path.is_file():
        name = target.removeprefix("docs/") if target.startswith("docs/") else f"files/{target}"
        files[name] = path
        return up + name
    return match[0]


def _in_repository(source: str, target: str) -> str:
    resolved = (ROOT / source).parent.joinpath(target).resolve()
    return str(resolved.relative_to(ROOT)) if resolved.is_relative_to(ROOT) else target


def _toctree(title: str, names: list[str]) -> str:
    return "\n".join(["\n```{toctree}", ":hidden:", f":caption: {title}", "", *names, "```", ""])


def build() -> None:
    stage()
    with_warnings = ["--fail-on-warning", "--keep-going", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *with_warnings, "--builder", "html"]
    paths = ["--conf-dir", ROOT / "tools/site", "--doctree-dir", DOCTREES, STAGED, OUTPUT]
    subprocess.run([*command, *map(str, paths)], check=True)
    for unused in ("_sources", ".buildinfo", "objects.inv"):
        path = OUTPUT / unused
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    build()
