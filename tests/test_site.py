"""The documents build into a site without a warning, it needs no network, and what is made from code is up to date."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import stretto

ROOT = Path(__file__).parents[1]
EXTERNAL = re.compile(r"^(https?:)?//")


class Loaded(HTMLParser):
    """Collects what a page loads by itself: scripts, styles, pictures, frames. Links to follow are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.urls.append(given.get("href") or "")
        if tag != "a" and "src" in given:
            self.urls.append(given["src"] or "")
        if "url(" in (given.get("style") or ""):
            self.urls += re.findall(r"url\(['\"]?([^'\")]+)", given["style"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. Strict: a broken link, a lost anchor or a page outside the navigation is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = Loaded()
        loaded.feed(text)
        assert not [url for url in loaded.urls if EXTERNAL.match(url)], page
        assert 'class="mermaid"' not in text, f"{page}: mermaid would be fetched"
    for style in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import )['\"]?([^'\")\s]+)", style.read_text(encoding="utf-8"))
        assert not [url for url in urls if EXTERNAL.match(url)], style


def test_every_file_that_a_page_loads_is_there(site):
    for page in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        for url in loaded.urls:
            target = url.partition("#")[0].partition("?")[0]
            if target and not target.startswith(("data:", "/")):  # 404.html names files from the root
                assert (page.parent / target).exists(), f"{page}: {url}"


def test_search_works_from_a_file(site):
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = {")
    assert "assets/iframe-worker.js" in (site / "index.html").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name(site):
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in stretto.__all__:
        assert name in page or name == "__version__", name


def test_the_examples_are_all_listed():
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    for path in (ROOT / "examples").iterdir():
        assert f"(../examples/{path.name})" in page or path.name.startswith(("_", ".")), path.name


def test_what_is_made_from_code_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "making" / "write.py"), "--check"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
