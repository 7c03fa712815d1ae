"""The page's files in one: modules, styles and pictures inside index.html.

Modules import each other by names of an import map, which has each as a `data:` URL: so they run
from file://, where browsers load no modules, and cycles and dynamic imports keep working.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path

from agentgym_rl.core.errors import ConfigError

_SCRIPTS = (".js", ".mjs")
_IMPORT = re.compile(r"""(\bfrom\s*|\bimport\s*\(?\s*)(["'])(\.{1,2}/[^"']+)\2""")
_SCRIPT = re.compile(r"<script\b([^>]*?)\bsrc=[\"']([^\"']+)[\"']([^>]*)>\s*</script>")
_STYLE = re.compile(
    r"<link\b(?=[^>]*\brel=[\"']stylesheet[\"'])[^>]*\bhref=[\"']([^\"']+)[\"'][^>]*>"
)
_PRELOAD = re.compile(r"<link\b(?=[^>]*\brel=[\"']modulepreload[\"'])[^>]*>")
_PICTURE = re.compile(r"(<(?:link|img)\b[^>]*\b(?:href|src)=)([\"'])([^\"':]+)\2")
_URL = re.compile(r"url\(\s*([\"']?)([^\"')]+)\1\s*\)")
_META = re.compile(r"<meta\b[^>]*http-equiv=[\"']Content-Security-Policy[\"'][^>]*>", re.IGNORECASE)
_TYPES = {
    **{".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon"},
    **{".woff2": "font/woff2", ".css": "text/css"},
}
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline' data:; "
    "img-src data:; font-src data:"
)
"""A saved page can ask nobody for anything."""


def inlined(page: Path, *, data: str) -> str:
    """index.html of `page` with all that it needs, and `data` in a script of id `arl-data`.

    Raises:
        ConfigError: there is no page, or it names a file that is not there.
    """
    if not (page / "index.html").is_file():
        raise ConfigError(f"no index.html in {page}: this installation has no page")
    text = _META.sub("", (page / "index.html").read_text(encoding="utf-8"))
    text = _PRELOAD.sub("", text)
    text = _STYLE.sub(lambda m: f"<style>{_css(page, m[1])}</style>", text)
    text = _SCRIPT.sub(lambda m: _script(page, m[1] + m[3], m[2]), text)
    text = _PICTURE.sub(lambda m: f"{m[1]}{m[2]}{_data_url(page, m[3])}{m[2]}", text)
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<script type="importmap">{json.dumps({"imports": _modules(page)})}</script>\n'
        f'<script type="application/json" id="arl-data" data-encoding="gzip+base64">{data}'
        "</script>\n"
    )
    found = re.search(r"<head\b[^>]*>", text)
    if not found:
        raise ConfigError(f"{page / 'index.html'} has no <head>")
    # The coding has to be named within the first 1,024 bytes.
    charset = '\n<meta charset="utf-8">\n'
    return text[: found.end()] + charset + head + text[found.end() :]


def _modules(page: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sorted(page.rglob("*")):
        if file.suffix in _SCRIPTS and file.is_file():
            name = file.relative_to(page).as_posix()
            text = _IMPORT.sub(lambda m, of=name: _renamed(page, of, m), file.read_text("utf-8"))
            packed = base64.b64encode(text.encode()).decode()
            found[_name(name)] = f"data:text/javascript;base64,{packed}"
    return found


def _renamed(page: Path, importer: str, match: re.Match[str]) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(importer), match[3]))
    if path.startswith("..") or not (page / path).is_file():
        raise ConfigError(f"{page / importer} imports {match[3]}, which is not there")
    return f"{match[1]}{match[2]}{_name(path)}{match[2]}"


def _name(path: str) -> str:
    return f"arl/{path}"


def _script(page: Path, attributes: str, source: str) -> str:
    path = _path(source)
    text = _read(page, path)
    if re.search(r"type=[\"']module[\"']", attributes):
        return f'<script type="module">import {json.dumps(_name(path))};</script>'
    harmless = text.replace("</script", "<\\/script")
    return f"<script{attributes.rstrip()}>{harmless}</script>"


def _css(page: Path, name: str) -> str:
    path = _path(name)

    def url(match: re.Match[str]) -> str:
        if match[2].startswith(("data:", "#")):
            return match[0]
        return f"url({_data_url(page, posixpath.join(posixpath.dirname(path), match[2]))})"

    return _URL.sub(url, _read(page, path))


def _data_url(page: Path, name: str) -> str:
    path = _path(name)
    kind = _TYPES.get(posixpath.splitext(path)[1])
    if kind is None:
        return name
    if kind == "text/css":
        packed = _css(page, path).encode()
    else:
        _read(page, path, text=False)
        packed = (page / path).read_bytes()
    return f"data:{kind};base64,{base64.b64encode(packed).decode()}"


def _path(name: str) -> str:
    return posixpath.normpath(name.split("?")[0].split("#")[0].lstrip("/"))


def _read(page: Path, path: str, *, text: bool = True) -> str:
    if path.startswith("..") or not (page / path).is_file():
        raise ConfigError(f"{page / 'index.html'} names {path}, which is not there")
    return (page / path).read_text(encoding="utf-8") if text else ""
