"""Renews docs/report.png from the report of the default study, and docs/curves.png from its curves.

    python3 docs/screenshots.py REPORT     needs playwright, and `chromium` in the path
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

docs = Path(__file__).parent
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1080, "height": 520})
    page.goto(Path(sys.argv[1]).resolve().as_uri())
    page.screenshot(path=docs / "report.png")
    chart = page.locator("figure.chart", has=page.locator("svg[aria-label='Training loss']"))
    chart.scroll_into_view_if_needed()
    chart.locator("svg.linear").hover()
    page.set_viewport_size({"width": 1080, "height": 800})
    chart.screenshot(path=docs / "curves.png")
    browser.close()
