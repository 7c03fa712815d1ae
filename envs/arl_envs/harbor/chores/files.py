"""Chores with files: finding, moving, renaming, comparing, packing."""

from __future__ import annotations

import gzip
import io
import random
import shlex
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .chore import (
    ENDINGS,
    PARTS,
    WORDS,
    Chore,
    drawn_paths,
    drawn_text,
    encoded,
    some,
    text_is,
    top_of,
    tree_is,
)


def _listed(
    top: str,
    which: str,
    name: str,
    files: Mapping[str, str],
    found: Sequence[str],
    find: str,
    commands: Sequence[str] = (),
) -> Chore:
    """Return a chore: to list the paths of files below a folder. `which` describes the files in
    words; the command `find` prints their paths in any order."""
    return Chore(
        f"Write the paths of all files below {top}/ {which} to {name}: one a line, beginning with "
        f"{top}/, in the order of their bytes.",
        encoded(files),
        [text_is(name, found)],
        [f"{find} | LC_ALL=C sort > {name}"],
        commands,
    )


def find_text(rng: random.Random, level: int) -> Chore:
    """Draw a chore: which files contain a word."""
    paths = drawn_paths(rng, level)
    word = f"{rng.choice(WORDS)}{rng.randint(100, 999)}"
    marked = some(rng, paths)
    files = {path: drawn_text(rng, rng.randint(1, 4)) for path in paths}
    for path in paths:
        files[path] += f"{word} here\n" if path in marked else f"{word}0 there\n" * (level > 1)
    top = top_of(paths)
    which = f"that contain the word {word} (the whole word)"
    return _listed(top, which, "found.txt", files, marked, f"grep -rlw {word} {top}")


def find_large(rng: random.Random, level: int) -> Chore:
    """Draw a chore: which files are larger than a size."""
    paths = drawn_paths(rng, level)
    limit = rng.randint(60, 300)
    large = some(rng, paths)
    files = {
        path: "x" * (limit + rng.randint(1, 90) if path in large else limit - rng.randint(0, 50))
        for path in paths
    }
    top = top_of(paths)
    find = f"find {top} -type f -size +{limit}c"
    return _listed(top, f"of more than {limit} bytes", "large.txt", files, large, find)


def find_old(rng: random.Random, level: int) -> Chore:
    """Draw a chore: which files were last changed before a day."""
    paths = drawn_paths(rng, level)
    day = rng.randint(5, 25)
    old = some(rng, paths)
    commands = [
        f"touch -d '2024-{rng.randint(1, 5) if path in old else rng.randint(7, 9):02d}-"
        f"{rng.randint(1, 28):02d} 12:00:00' {shlex.quote(path)}"
        for path in paths
    ]
    top, date = top_of(paths), f"2024-06-{day:02d}"
    files = {path: drawn_text(rng, 1) for path in paths}
    find = f"find {top} -type f ! -newermt {date}"
    return _listed(top, f"last changed before {date}", "old.txt", files, old, find, commands)


def find_writable(rng: random.Random, level: int) -> Chore:
    """Draw a chore: which files are open to others."""
    paths = drawn_paths(rng, level)
    what, letter, bit = rng.choice([("write", "w", 2), ("execute", "x", 1)])
    loose = some(rng, paths)
    commands = [
        f"chmod {0o600 + rng.choice([0, 0o40, 0o100]) + (bit if path in loose else 4):o} "
        f"{shlex.quote(path)}"
        for path in paths
    ]
    top = top_of(paths)
    files = {path: drawn_text(rng, 1) for path in paths}
    which = f"that others (neither owner nor group) may {what}"
    find = f"find {top} -type f -perm -o+{letter}"
    return _listed(top, which, "loose.txt", files, loose, find, commands)


def broken_links(rng: random.Random, level: int) -> Chore:
    """Draw a chore: which symbolic links lead nowhere."""
    paths = drawn_paths(rng, level)
    top = top_of(paths)
    links = [f"{top}/link-{number:02d}" for number in range(len(paths))]
    broken = some(rng, links)
    commands = [
        f"ln -s {'missing-' if link in broken else ''}"
        f"{shlex.quote(path.partition('/')[2]) if link not in broken else number} {link}"
        for number, (link, path) in enumerate(zip(links, paths, strict=True))
    ]
    return Chore(
        f"Some symbolic links below {top}/ lead to files that do not exist. Write the paths of "
        f"these links to broken.txt, one a line, beginning with {top}/, in the order of bytes.",
        encoded({path: drawn_text(rng, 1) for path in paths}),
        [text_is("broken.txt", broken)],
        [f"find {top} -xtype l | LC_ALL=C sort > broken.txt"],
        commands,
    )


def same_content(rng: random.Random, level: int) -> Chore:
    """Draw a chore: which files have the content of another."""
    paths = drawn_paths(rng, level)
    doubled = sorted(rng.sample(paths, max(2, len(paths) // 3)))
    files = {path: f"{number} {drawn_text(rng, 2)}" for number, path in enumerate(paths)}
    for path in doubled:
        files[path] = files[doubled[0]]
    top = top_of(paths)
    return Chore(
        f"Some files below {top}/ have exactly the same content. Write their paths to same.txt: "
        f"one a line, beginning with {top}/, in the order of their bytes.",
        encoded(files),
        [text_is("same.txt", doubled)],
        [
            f"find {top} -type f -exec md5sum {{}} + | sort | uniq -w32 -D | cut -c35- "
            "| LC_ALL=C sort > same.txt"
        ],
    )


def disk_usage(rng: random.Random, level: int) -> Chore:
    """Draw a chore: the bytes in each folder."""
    names = sorted(rng.sample(PARTS, min(2 + level, 5)))
    files: dict[str, str] = {}
    for name in names:
        for number in range(rng.randint(1, 2 * level)):
            below = f"deep/{number}" if level > 1 and number % 2 else str(number)
            files[f"disk/{name}/{below}.bin"] = "x" * rng.randint(1, 400)
    sizes = Counter[str]()
    for path, text in files.items():
        sizes[path.split("/")[1]] += len(text)
    lines = [f"{name} {sizes[name]}" for name in names]
    return Chore(
        "For each folder directly below disk/, write its name, a blank, and the sum of the sizes "
        "in bytes of all files in it (at any depth) to usage.txt, in the order of names.",
        encoded(files),
        [text_is("usage.txt", lines)],
        [
            "for d in disk/*/; do "
            "n=$(find $d -type f -printf '%s\\n' | awk '{s += $1} END {print s}'); "
            "echo $(basename $d) $n; done > usage.txt"
        ],
    )


def rename_ending(rng: random.Random, level: int) -> Chore:
    """Draw a chore: another ending for some files."""
    old, new = rng.sample(["jpeg", "jpg", "text", "htm", "html", "yml", "yaml"], 2)
    paths = drawn_paths(rng, level, endings=(old, "md", old))
    top = top_of(paths)
    if not any(path.endswith(old) for path in paths):
        paths = sorted([*paths, f"{top}/last-1.{old}"])
    files = {path: f"{path}\n" for path in paths}
    after = {p.removesuffix(old) + new if p.endswith(f".{old}") else p: t for p, t in files.items()}
    return Chore(
        f"Rename every file below {top}/ whose name ends in .{old} so that it ends in .{new}. "
        "Change nothing else.",
        encoded(files),
        _exactly(top, after),
        [f'find {top} -name \'*.{old}\' | while read -r f; do mv "$f" "${{f%{old}}}{new}"; done'],
    )


def sort_by_ending(rng: random.Random, level: int) -> Chore:
    """Draw a chore: files into folders by their ending."""
    names = {path.rpartition("/")[2] for path in drawn_paths(rng, level)}
    files = {f"inbox/{name}": f"{name}\n" for name in sorted(names)}
    after = {f"{name.rpartition('.')[2]}/{name}": f"{name}\n" for name in sorted(names)}
    return Chore(
        "Move each file in inbox/ to sorted/ENDING/, where ENDING is what follows the dot of its "
        "name, such as sorted/txt/a.txt. Leave no file in inbox/.",
        encoded(files),
        [*_exactly("sorted", {f"sorted/{path}": text for path, text in after.items()})]
        + [{"is": "absent", "path": path} for path in files],
        ['for f in inbox/*; do mkdir -p "sorted/${f##*.}"; mv "$f" "sorted/${f##*.}/"; done'],
    )


def number_names(rng: random.Random, level: int) -> Chore:
    """Draw a chore: names with a number of fixed width."""
    kind = rng.choice(["scan", "page", "shot"])
    width = rng.choice([3, 4])
    numbers = sorted([rng.randint(1, 9), *rng.sample(range(10, 120), 3 * level)])
    files = {f"{kind}s/{kind}{number}.txt": f"{kind} {number}\n" for number in numbers}
    after = {f"{kind}s/{kind}{number:0{width}d}.txt": f"{kind} {number}\n" for number in numbers}
    return Chore(
        f"The files in {kind}s/ are called {kind}N.txt, where N is a number. Rename them so that "
        f"every number has {width} digits, with zeros in front. Their contents stay as they are.",
        encoded(files),
        _exactly(f"{kind}s", after),
        [
            f"cd {kind}s && for f in *.txt; do n=${{f#{kind}}}; n=${{n%.txt}}; "
            f'g={kind}$(printf %0{width}d "$n").txt; [ "$f" = "$g" ] || mv "$f" "$g"; done'
        ],
    )


def unpack_some(rng: random.Random, level: int) -> Chore:
    """Draw a chore: some files out of an archive."""
    paths = drawn_paths(rng, level)
    ending = rng.choice(sorted({path.rpartition(".")[2] for path in paths}))
    files = {path: f"{path}\n" for path in paths}
    wanted = {f"out/{p}": text for p, text in files.items() if p.endswith(f".{ending}")}
    return Chore(
        f"backup.tar.gz is an archive. Extract only its files whose names end in .{ending}, into "
        "the folder out/, with their folders as in the archive.",
        {"backup.tar.gz": _archive(files)},
        _exactly("out", wanted),
        [f"mkdir out && tar -xzf backup.tar.gz -C out --wildcards '*.{ending}'"],
    )


def pack_some(rng: random.Random, level: int) -> Chore:
    """Draw a chore: some files into an archive."""
    paths = drawn_paths(rng, level)
    ending = rng.choice(sorted({path.rpartition(".")[2] for path in paths} & {*ENDINGS}))
    files = {path: drawn_text(rng, 2) for path in paths}
    chosen = {path: text for path, text in files.items() if path.endswith(f".{ending}")}
    top = top_of(paths)
    return Chore(
        f"Pack all files below {top}/ whose names end in .{ending} into packed.tar.gz, with paths "
        f"that begin with {top}/. Nothing else may be in it; the files stay where they are.",
        encoded(files),
        [{"is": "tar", "path": "packed.tar.gz", "files": chosen}, tree_is(top, _below(top, paths))],
        [f"find {top} -name '*.{ending}' -print0 | tar -czf packed.tar.gz --null -T -"],
    )


def _below(top: str, paths: list[str]) -> list[str]:
    return [path.removeprefix(f"{top}/") for path in paths]


def _exactly(top: str, files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the checks that these files, and no others, are below a folder."""
    texts: list[dict[str, Any]] = [
        {"is": "text", "path": path, "text": text} for path, text in files.items()
    ]
    return [tree_is(top, _below(top, list(files))), *texts]


def _archive(files: Mapping[str, str]) -> bytes:
    """Return a tar.gz, the same bytes each time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(plain.getvalue(), mtime=0)
