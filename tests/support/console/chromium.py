"""Pages in Debian's Chromium, and what is asked of every one of them."""

import shutil
from pathlib import Path

from playwright.sync_api import Page, expect

EXECUTABLE = shutil.which("chromium")
TIMEOUT_MS = 60_000
expect.set_options(timeout=TIMEOUT_MS)

# Every text that is seen, with its contrast to whatever lies behind it (WCAG 2's formula).
_CONTRAST = """
() => {
  const parse = (text) => {
    const srgb = text.match(/color\\(srgb ([^)]+)\\)/);
    if (srgb) {
      const [numbers, alpha] = srgb[1].split("/");
      const parts = numbers.trim().split(/\\s+/).map((each) => Number(each) * 255);
      return [...parts, alpha === undefined ? 1 : Number(alpha)];
    }
    const parts = text.match(/[\\d.]+/g).map(Number);
    return parts.length === 3 ? [...parts, 1] : parts;
  };
  const over = (top, under) =>
    [0, 1, 2].map((index) => top[index] * top[3] + under[index] * (1 - top[3])).concat(1);
  const luminance = (colour) => {
    const [red, green, blue] = colour.slice(0, 3).map((each) => {
      const share = each / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      layers.push(parse(getComputedStyle(each).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const box = element.getBoundingClientRect();
    if (!walker.currentNode.data.trim() || box.width < 2 || box.height < 2) continue;
    if (element.closest(".off, [disabled], option, noscript")) continue;  // nothing to be used
    const ground = behind(element);
    const ink = over(parse(getComputedStyle(element).color), ground);
    const [light, dark] = [luminance(ink), luminance(ground)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) {
      const text = walker.currentNode.data.trim().slice(0, 40);
      poor.push(`${contrast.toFixed(2)} ${element.tagName}.${element.className}: ${text}`);
    }
  }
  return poor;
}
"""

_UNNAMED = """
() => [...document.querySelectorAll(
    "input:not([type=hidden]), select, textarea, button, a, summary, progress, [role=img]")]
  .filter((each) => !(each.labels && each.labels.length) && !each.getAttribute("aria-label")
    && !each.textContent.trim())
  .map((each) => each.outerHTML.slice(0, 100))
"""


# What axe-core knows of screen readers and keyboards. Contrast is checked above, in both colours;
# a node of a picture shows a cut name, and its label has the whole one.
_AXE = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
_AXE_RUN = """
async () => {
  const found = await axe.run(document, {
    resultTypes: ["violations"],
    rules: {
      "color-contrast": { enabled: false }, "label-content-name-mismatch": { enabled: false },
    },
  });
  return found.violations
    .filter((rule) => ["serious", "critical"].includes(rule.impact))
    .map((rule) => `${rule.id}: ${rule.nodes.map((node) => node.html.slice(0, 100)).join(" | ")}`);
}
"""


def check_readable(page: Page, path: str) -> None:
    """In light and dark, on a desk and on a phone: texts stand out, controls have names, nothing
    needs to be moved sideways, and axe-core finds nothing serious. The page is left as it was
    opened.
    """
    assert _AXE.is_file(), "tools/install_console_assets.sh fetches axe-core"
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    found = page.evaluate(_AXE_RUN)
    assert not found, (path, found)
    assert page.locator("main").count() == 1, path
    assert not page.evaluate(_UNNAMED), path
    usual = page.viewport_size
    for width in (usual["width"], 360):
        page.set_viewport_size({"width": width, "height": usual["height"]})
        grounds = set()
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            poor = page.evaluate(_CONTRAST)
            assert not poor, (path, width, scheme, poor)
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(grounds) == 2, path
        is_wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(is_wider), (path, width)
    page.set_viewport_size(usual)
