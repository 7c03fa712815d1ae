"""The export of runs into one file that needs no server: the page, and the answers it requests.

Modules, styles and pictures are inside index.html. Modules import each other by the names of an
import map, which maps each name to a `data:` URL. So they run from file://, where browsers load no
modules, and cycles and dynamic imports keep working.

The file's `<script type="application/json" id="arl-data">` is base64 of gzip of JSON: `answers` by
the path of the route (`/api/runs/ID/episodes` has all summaries, which the page filters and sorts),
and `left_out`, the number of episodes without details by run.
"""

from __future__ import annotations

import base64
import gzip
import json
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from agentgym_rl.core import ConfigError
from agentgym_rl.runtime import new_file

from .app import PAGE
from .detail import episode_detail, group_detail
from .folders import InspectedRun, Runs
from .query import MOST, Query
from .timeline import timeline

T = TypeVar("T")

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
"""The content security policy of a saved page, which cannot send any request."""


def inlined(page: Path, *, data: str) -> str:
    """Return index.html of `page` with all its files, and `data` in a script of id `arl-data`.

    Raises:
        ConfigError: there is no page, or it names a missing file.
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
    # Browsers look for the character encoding in the first 1,024 bytes.
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


def write_page(
    places: Sequence[Path],
    out: Path,
    *,
    episodes: int = 200,
    on_progress: Callable[[int], None] = lambda _: None,
    page: Path = PAGE,
) -> dict[str, Any]:
    """Write one page that shows the runs in `places` without a server, and return a report on it.
    Blocking. For each run, it has the details of at most `episodes` episodes, spread evenly over
    the run, and of their groups; of a group that is too large, those of some members.

    Raises:
        ConfigError: a place does not exist, there are no runs, a run cannot be read, or `out`
            exists.
    """
    runs = Runs(places).all()
    if not runs:
        raise ConfigError("no runs here to write: pass runs, or folders with runs in them")
    answers: dict[str, Any] = {"/api/runs": {"runs": [run.summary() for run in runs]}}
    left_out: dict[str, int] = {}
    for run in runs:
        found, left_out[run.id] = _of(run, episodes, on_progress)
        answers |= found
    data = {"made_s": time.time(), "answers": answers, "left_out": left_out}
    packed = base64.b64encode(gzip.compress(msgspec.json.encode(data), mtime=0)).decode()
    text = inlined(page, data=packed)
    with new_file(out, argument=f"--html {out}") as file:
        file.write(text)
    return {
        "out": str(out),
        "runs": len(runs),
        "episodes": sum("/episodes/" in path for path in answers),
        "left_out": sum(left_out.values()),
        "size_bytes": len(text.encode()),
    }


def _of(
    run: InspectedRun, most: int, on_progress: Callable[[int], None]
) -> tuple[dict[str, Any], int]:
    while run.index.read_more():
        pass
    base = f"/api/runs/{_component(run.id)}"
    summaries = list(_summaries(run))
    chosen = _evenly(summaries, most)
    answers: dict[str, Any] = {
        f"{base}/config": run.config_answer(),
        f"{base}/metrics": run.metrics(),
        f"{base}/timeline": timeline(run),
        f"{base}/facets": run.index.facets(),
        f"{base}/episodes": {
            **{"total": len(summaries), "episodes": summaries, "complete": True},
            "searched": len(summaries),
        },
    }
    for summary in chosen:
        path = f"{base}/episodes/{_component(summary['id'])}"
        answers[path] = episode_detail(run, summary["id"])
        on_progress(1)
    kept = {summary["id"] for summary in chosen}
    for group in dict.fromkeys(summary["group"] for summary in chosen):
        answers[f"{base}/groups/{_component(group)}"] = group_detail(run, group, kept=kept)
    return answers, len(summaries) - len(chosen)


def _component(text: str) -> str:
    """Return a text as the page writes it into an address: JavaScript's `encodeURIComponent`, which
    keeps more characters than Python's `quote`."""
    return quote(text, safe="!~*'()")


def _summaries(run: InspectedRun) -> Iterable[dict[str, Any]]:
    offset = 0
    while found := run.index.page(Query(offset=offset, limit=MOST))["episodes"]:
        yield from found
        offset += len(found)


def _evenly(found: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Choose at most `most` episodes spread over the run: complete groups of the usual size, and of
    larger ones as many members as the others leave room for."""
    if len(found) <= most:
        return list(found)
    groups: dict[str, list[dict[str, Any]]] = {}
    for summary in found:
        groups.setdefault(summary["group"], []).append(summary)
    usual = sorted(map(len, groups.values()))[(len(groups) - 1) // 2]
    count = min(len(groups), max(1, most // usual))
    chosen = _spread(list(groups.values()), count)
    taken, left = dict[str, list[dict[str, Any]]](), most
    for number, members in enumerate(sorted(chosen, key=len)):  # the smallest first
        share = min(len(members), left // (count - number))
        taken[members[0]["group"]] = _spread(members, share)
        left -= share
    return [summary for name in groups for summary in taken.get(name, ())]


def _spread(items: Sequence[T], count: int) -> list[T]:
    """Return `count` of some items, evenly spread."""
    return [items[number * len(items) // count] for number in range(count)]
