"""The page itself: its files as they lie in the package, what the browser is allowed to do, and all of it in one file.

There is no build step. Scripts are joined in order, the library for curves first.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib.resources import files

SCRIPTS = ["uplot.js", "dom.js", "words.js", "source.js", "curves.js", "timeline.js", "allocation.js", "plan.js"]
SCRIPTS += ["run.js", "cluster.js", "simulate.js", "page.js"]
STYLES = ("uplot.css", "page.css")
PAGE = "page.html"
SLOT = "<!-- data -->"
_LINKS = '<link rel="stylesheet" href="page.css">'
_SCRIPT = '<script src="page.js" defer></script>'

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What a browser may do on the page: run and ask what comes from the same server, and turn no text into markup."""


@functools.cache
def html() -> str:
    """Return the page."""
    return _text(PAGE)


@functools.cache
def script() -> str:
    """Return all scripts as one."""
    return "\n".join(_text(name) for name in SCRIPTS)


@functools.cache
def style() -> str:
    """Return all styles as one."""
    return "\n".join(_text(name) for name in STYLES)


def one_file(data: bytes, title: str) -> str:
    """Return the page with its scripts, its styles and `data`, JSON, in it: it asks nobody for anything.

    Only what is in the file may run in it: its policy names the checksums of script and style.
    """
    safe = data.decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    safe = safe.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    block = f'<script type="application/json" id="report">{safe}</script>'
    policy = (
        f"default-src 'none'; script-src '{_checksum(script())}'; style-src '{_checksum(style())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    page = html().replace(_LINKS, f"<style>{style()}</style>")
    page = page.replace('<meta charset="utf-8">', _meta(policy), 1).replace("<title>Dovetail</title>", _title(title), 1)
    return page.replace(_SCRIPT, "", 1).replace(SLOT, f"{block}\n<script>{script()}</script>", 1)


def _meta(policy: str) -> str:
    return f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _title(title: str) -> str:
    safe = title.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<title>{safe}</title>"


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(name: str) -> str:
    return (files("dovetail.dashboard") / "assets" / name).read_text(encoding="utf-8")
