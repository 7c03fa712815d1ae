"""Chores with texts: repairing settings, counting in logs, joining tables."""

from __future__ import annotations

import json
import random
import shlex
from collections import Counter

from arl_envs.harbor.harness import encode

from .chore import (
    FOLDERS,
    PARTS,
    SIZES,
    USERS,
    WORDS,
    Chore,
    drawn_paths,
    encoded,
    text_is,
    top_of,
)

LEVELS_OF_LOGS = ("INFO", "WARN", "ERROR", "DEBUG")


def mend_json(rng: random.Random, level: int) -> Chore:
    """Draw a chore: a settings file that no longer parses, and one value to change."""
    keys = rng.sample(WORDS, 2 + level)
    values = {key: rng.choice([rng.randint(1, 999), True, "on", [1, 2]]) for key in keys}
    values["port"] = rng.randint(1000, 9999)
    good = json.dumps(values, indent=2) + "\n"
    lines = good.splitlines()
    place = rng.choice([n for n, line in enumerate(lines) if line.endswith(",")])
    bad = {
        "comma": "\n".join([*lines[:place], lines[place][:-1], *lines[place + 1 :]]) + "\n",
        "last": good.rstrip().removesuffix("}").rstrip() + ",\n}\n",
        "brace": good.rstrip().removesuffix("}"),
    }[rng.choice(["comma", "last", "brace"])]
    port = rng.randint(10000, 60000)
    wanted = {**values, "port": port}
    name = f"{rng.choice(PARTS)}.json"
    fixed = json.dumps(wanted, indent=2)
    return Chore(
        f"{name} is no valid JSON: mend it, and set port to {port}. All other values stay.",
        encoded({name: bad}),
        [{"is": "json", "path": name, "value": encode(wanted)}],
        [f"printf '%s\\n' {shlex.quote(fixed)} > {name}"],
    )


def change_setting(rng: random.Random, level: int) -> Chore:
    """Draw a chore: one key in one section of an INI file."""
    sections = rng.sample(PARTS, 1 + level)
    section, key = rng.choice(sections), rng.choice(["size", "mode", "limit"])
    value = str(rng.randint(100, 999))
    lines: list[str] = []
    after: list[str] = []
    for name in sections:
        block = [
            f"[{name}]",
            *(f"{k} = {rng.randint(1, 99)}" for k in ("size", "mode", "limit")),
            "",
        ]
        lines += block
        changed = [f"{key} = {value}" if line.startswith(f"{key} ") else line for line in block]
        after += changed if name == section else block
    return Chore(
        f"In app.ini, set {key} in the section [{section}] to {value}. Change nothing else.",
        encoded({"app.ini": "\n".join(lines) + "\n"}),
        [text_is("app.ini", after)],
        [f"sed -i '/^\\[{section}\\]/,/^$/s/^{key} = .*/{key} = {value}/' app.ini"],
    )


def replace_word(rng: random.Random, level: int) -> Chore:
    """Draw a chore: a word replaced in some files."""
    paths = drawn_paths(rng, level, endings=("md", "txt"))
    old, new = rng.sample(WORDS, 2)
    top = top_of(paths)
    if not any(path.endswith(".md") for path in paths):
        paths = sorted([*paths, f"{top}/read-me.md"])
    files = {path: f"the {old} and {rng.choice(WORDS)}\n{old}, {old}.\n" for path in paths}
    after = {p: t.replace(old, new) if p.endswith(".md") else t for p, t in files.items()}
    return Chore(
        f"In all .md files below {top}/, replace {old} by {new}. Leave other files as they are.",
        encoded(files),
        [{"is": "text", "path": path, "text": text} for path, text in after.items()],
        [f"find {top} -name '*.md' -exec sed -i 's/{old}/{new}/g' {{}} +"],
    )


def _log(rng: random.Random, level: int) -> list[tuple[str, str, str, int]]:
    """Return the day, level, user and bytes of each line of a log."""
    return [
        (
            f"2025-0{rng.randint(1, 9)}-{rng.randint(10, 28)}",
            rng.choice(LEVELS_OF_LOGS),
            rng.choice(USERS),
            rng.randint(1, 5000),
        )
        for _ in range(3 * SIZES[level])
    ]


def _logged(rows: list[tuple[str, str, str, int]]) -> str:
    return "".join(f"{d} [{kind}] user={user} bytes={size}\n" for d, kind, user, size in rows)


def log_to_csv(rng: random.Random, level: int) -> Chore:
    """Draw a chore: a log as a table."""
    rows = _log(rng, level)
    kind = rng.choice(sorted({row[1] for row in rows}))
    lines = [f"{day},{user},{size}" for day, of, user, size in rows if of == kind]
    return Chore(
        f"Each line of app.log is: DAY [LEVEL] user=NAME bytes=NUMBER. Write the {kind} lines to "
        "out.csv, in their order: first the line day,user,bytes, then those three values of each.",
        encoded({"app.log": _logged(rows)}),
        [text_is("out.csv", ["day,user,bytes", *lines])],
        [
            f"(echo day,user,bytes; grep '\\[{kind}\\]' app.log "
            "| sed 's/^\\([^ ]*\\) .* user=\\([^ ]*\\) bytes=\\(.*\\)$/\\1,\\2,\\3/') > out.csv"
        ],
    )


def log_to_json(rng: random.Random, level: int) -> Chore:
    """Draw a chore: bytes by user, as JSON."""
    rows = _log(rng, level)
    sums: Counter[str] = Counter()
    for _, _, user, size in rows:
        sums[user] += size
    program = """{split($3, u, "="); split($4, b, "="); s[u[2]] += b[2]}
END {printf "{"; for (k in s) {printf "%s\\"%s\\": %d", c, k, s[k]; c = ", "}; print "}"}"""
    return Chore(
        "Each line of app.log is: DAY [LEVEL] user=NAME bytes=NUMBER. Write sums.json: one object "
        'with the sum of the bytes of each user, such as {"ann": 12}.',
        encoded({"app.log": _logged(rows)}),
        [{"is": "json", "path": "sums.json", "value": encode(dict(sums))}],
        [f"awk {shlex.quote(program)} app.log > sums.json"],
    )


def count_levels(rng: random.Random, level: int) -> Chore:
    """Draw a chore: how often each level occurs."""
    rows = _log(rng, level)
    counts = Counter(kind for _, kind, _, _ in rows)
    lines = [f"{kind} {counts[kind]}" for kind in sorted(counts)]
    return Chore(
        "The second word of each line of app.log is a level in square brackets. Write each level "
        "that occurs, without brackets, a blank, and how often it occurs to levels.txt, sorted.",
        encoded({"app.log": _logged(rows)}),
        [text_is("levels.txt", lines)],
        [
            "awk '{print $2}' app.log | tr -d '[]' | LC_ALL=C sort | uniq -c "
            "| awk '{print $2, $1}' > levels.txt"
        ],
    )


def join_tables(rng: random.Random, level: int) -> Chore:
    """Draw a chore: two tables with a common key."""
    count = SIZES[level]
    keys = sorted(rng.sample(range(100, 999), count))
    names = {key: rng.choice(USERS) for key in keys}
    amounts = {key: rng.randint(1, 500) for key in rng.sample(keys, max(2, count * 2 // 3))}
    first = [f"{key},{name}" for key, name in names.items()]
    second = [f"{key},{amount}" for key, amount in amounts.items()]
    rng.shuffle(first)
    lines = [f"{key},{names[key]},{amounts[key]}" for key in keys if key in amounts]
    return Chore(
        "people.csv has lines id,name and sums.csv has lines id,amount, both without a head. Write "
        "the lines id,name,amount of all ids that are in both to joined.csv, in the order of ids.",
        encoded({"people.csv": "\n".join(first) + "\n", "sums.csv": "\n".join(second) + "\n"}),
        [text_is("joined.csv", lines)],
        [
            "sort -t, -k1,1 people.csv > a.tmp; sort -t, -k1,1 sums.csv > b.tmp; "
            "join -t, a.tmp b.tmp > joined.csv; rm a.tmp b.tmp"
        ],
    )


def merge_lists(rng: random.Random, level: int) -> Chore:
    """Draw a chore: several lists as one without repetitions."""
    folder = rng.choice(FOLDERS)
    pool = [f"{rng.choice(WORDS)}-{rng.randint(1, 40)}" for _ in range(4 * SIZES[level])]
    lists = {f"{folder}/{n}.txt": rng.choices(pool, k=2 * SIZES[level]) for n in range(1 + level)}
    lines = sorted({line for names in lists.values() for line in names})
    return Chore(
        f"Write all lines of the .txt files in {folder}/ to all.txt, each once, in the order "
        "of their bytes.",
        encoded({path: "\n".join(names) + "\n" for path, names in lists.items()}),
        [text_is("all.txt", lines)],
        [f"LC_ALL=C sort -u {folder}/*.txt > all.txt"],
    )


def top_words(rng: random.Random, level: int) -> Chore:
    """Draw a chore: the most frequent words."""
    count = 1 + level
    weights = [2 ** (len(WORDS) - place) for place in range(len(WORDS))]
    order = rng.sample(WORDS, len(WORDS))
    text = rng.choices(order, weights, k=40 * level)
    counts = Counter(text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:count]
    body = "\n".join(" ".join(text[n : n + 6]) for n in range(0, len(text), 6)) + "\n"
    return Chore(
        f"Write the {count} most frequent words of story.txt to top.txt, each with its number of "
        "occurrences after a blank, the most frequent first, equally frequent ones by alphabet.",
        encoded({"story.txt": body}),
        [text_is("top.txt", [f"{word} {counts[word]}" for word in ranked])],
        [
            "tr -s ' ' '\\n' < story.txt | LC_ALL=C sort | uniq -c | LC_ALL=C sort -k1,1nr -k2,2 "
            f"| head -n {count} | awk '{{print $2, $1}}' > top.txt"
        ],
    )
