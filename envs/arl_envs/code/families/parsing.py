"""Texts in small custom formats."""

from __future__ import annotations

from .family import Args, Draw, Family, family


def _nest(draw: Draw, depth: int) -> str:
    """Return nested brackets."""
    kinds = str(draw.parameters["kinds"])
    return kinds[0] * depth + kinds[1] * depth


def _bracketed(draw: Draw) -> Args:
    """Return brackets that are mostly in order, with some other characters."""
    kinds = str(draw.parameters["kinds"])
    opened: list[int] = []
    text = ""
    for _ in range(draw.size):
        if draw.integer(0, 7) == 0:
            text += draw.word("xy<>[]", length=1)
        elif opened and draw.integer(0, int(draw.parameters["deepest"])) < len(opened):
            text += kinds[opened.pop() + 1]
        else:
            opened.append(draw.integer(0, len(kinds) // 2 - 1) * 2)
            text += kinds[opened[-1]]
    if draw.integer(0, 1):
        text += "".join(kinds[i + 1] for i in reversed(opened))
    return (text,)


@family(
    "parsing",
    kinds=("()[]", "()<>", "[]<>", "()[]<>"),
    deepest=(2, 3, 4),
    inputs=_bracketed,
    edges=lambda draw: [
        ("",),
        (str(draw.parameters["kinds"])[1],),
        (str(draw.parameters["kinds"])[0],),
        (str(draw.parameters["kinds"])[0] + str(draw.parameters["kinds"])[3],),
        (_nest(draw, int(draw.parameters["deepest"])),),
        (_nest(draw, int(draw.parameters["deepest"]) + 1),),
    ],
)
def find_bracket_error(text: str, *, kinds: str, deepest: int) -> int:
    """The brackets are {kinds}; any other character is ignored. Return the position (from 0) of
    the first character of `text` that is wrong: a closing bracket that does not fit the last
    one still open (or none is open), or an opening one that makes more than {deepest} open.
    If none is wrong, return -1 if all brackets are closed, else the length of `text`.
    """
    wanted = ""
    for i, c in enumerate(text):
        place = kinds.find(c)
        if place < 0:
            continue
        if place % 2 == 0:
            wanted += kinds[place + 1]
            if len(wanted) > deepest:
                return i
        elif wanted.endswith(c):
            wanted = wanted[:-1]
        else:
            return i
    return len(text) if wanted else -1


def _counted(draw: Draw) -> Args:
    """Return items with and without numbers, some of them groups."""

    def items(length: int, depth: int) -> str:
        text = ""
        while length > 0:
            used = draw.integer(1, length) if depth < 2 and draw.integer(0, 2) == 0 else 1
            item = f"({items(used - 1, depth + 1)})" if used > 1 else draw.word("abc", length=1)
            number = draw.rng.choice(["", "", "0", "1", "2", "2", "3", "11" if used == 1 else "4"])
            text += number + item if draw.parameters["place"] == "before" else item + number
            length -= used
        return text

    return (items(draw.size // 2, 0),)


@family(
    "parsing",
    place=("before", "after"),
    default=range(4),
    inputs=_counted,
    edges=lambda draw: [
        ("",),
        ("ab",),
        ("()",),
        ("2a" if draw.parameters["place"] == "before" else "a2",),
        ("12(a)" if draw.parameters["place"] == "before" else "(a)12",),
        ("2(a2(bc))a" if draw.parameters["place"] == "before" else "a((bc)2a)2",),
    ],
)
def expand_text(text: str, *, place: str, default: int) -> str:
    """`text` is a row of items. An item is a letter, or a row of items (maybe none) in round
    brackets. A whole number right {place} an item says how often the item is to be repeated; an
    item without a number is repeated {default} time(s), and one that is repeated 0 times vanishes.
    Return the text without numbers and brackets.
    """
    rows = [""]
    number = ""
    item = ""
    numbers: list[str] = []
    for c in [*text, "."]:
        if c.isdigit():
            number += c
            continue
        if place == "after":
            rows[-1] += item * (int(number) if number else default)
            number = item = ""
        if c == "(":
            rows.append("")
            numbers.append(number)
            number = ""
        elif c != ".":
            item = rows.pop() if c == ")" else c
            if place == "before":
                number = numbers.pop() if c == ")" else number
                rows[-1] += item * (int(number) if number else default)
                number = ""
    return rows[0]


@family(
    "parsing",
    again=("is ignored", "replaces the old one", "is added after the old one and a +"),
    bare=("is ignored", "removes KEY, if set", "means the same as KEY=on"),
    inputs=lambda draw: (
        ";".join(
            draw.word("aabbc", length=draw.integer(0, 7) and draw.integer(1, 2))
            + draw.rng.choice(["", "=", "=1", "=2", "=3", "=x=4", "=on"])
            for _ in range(draw.size // 2)
        ),
    ),
    edges=lambda draw: [
        ("",),
        ("b;a=1",),
        ("a=1;a;a=2;;b=",),
        ("=1;a==2;b=x=y",),
        ("b=1;ab=2;a=3;b=4;b",),
        ("a=1;a=1;a=2;=",),
    ],
)
def read_settings(text: str, *, again: str, bare: str) -> list[str]:
    """`text` has parts separated by ";", taken in order. A part KEY=VALUE (split at its first "=")
    sets KEY to VALUE, which may be empty; if KEY is set already, the new value {again}. A part KEY
    without "=" {bare}. A part with an empty KEY is ignored. Return the settings as KEY=VALUE,
    sorted by key.
    """
    settings: dict[str, str] = {}
    for part in text.split(";"):
        key, mark, value = part.partition("=")
        if not mark:
            if bare == "removes KEY, if set":
                settings.pop(key, None)
            if bare != "means the same as KEY=on":
                continue
            value = "on"
        if not key:
            continue
        if key not in settings or again == "replaces the old one":
            settings[key] = value
        elif again == "is added after the old one and a +":
            settings[key] += "+" + value
    return [f"{key}={settings[key]}" for key in sorted(settings)]


def _quoted(draw: Draw) -> Args:
    """Return fields, many with a quoted part."""
    mark, quote = str(draw.parameters["mark"]), str(draw.parameters["quote"])
    pieces = ["a", "b", "7", mark, mark, quote, quote, quote * 2, ",", "'"]
    return ("".join(draw.rng.choices(pieces, k=draw.size)),)


@family(
    "parsing",
    mark=(",", ";", "|"),
    quote=("'", '"', "*"),
    inputs=_quoted,
    edges=lambda draw: [
        ("",),
        (str(draw.parameters["mark"]) * 2,),
        ("{quote}a{mark}b{quote}c{mark}d".format(**draw.parameters),),
        ("{quote}a{quote}{quote}b{quote}{mark}{quote}{quote}".format(**draw.parameters),),
        ("a{mark}{quote}b{mark}c".format(**draw.parameters),),
        ("{quote}{quote}{quote}{quote}{mark}{quote}{quote}{quote}".format(**draw.parameters),),
    ],
)
def split_fields(text: str, *, mark: str, quote: str) -> list[str]:
    """`text` has fields separated by {mark} signs. A {quote} sign starts a quotation, which lasts
    to the next {quote} or to the end of `text`; these {quote} are left out. In a quotation, {mark}
    is an ordinary character, and two {quote} in a row do not end it but stand for one {quote} of
    the field. Return the fields that are not empty, in order.
    """
    fields = [""]
    quoted = False
    i = 0
    while i < len(text):
        c = text[i]
        if quoted and c == quote and text[i + 1 : i + 2] == quote:
            fields[-1] += quote
            i += 1
        elif c == quote:
            quoted = not quoted
        elif c == mark and not quoted:
            fields.append("")
        else:
            fields[-1] += c
        i += 1
    return [f for f in fields if f]


def _numerals(draw: Draw) -> Args:
    """Return numbers in groups of digits, about half of them with an error."""
    mark, group = str(draw.parameters["mark"]), int(draw.parameters["group"])
    words: list[str] = []
    for _ in range(draw.size // 2):
        lengths = [draw.integer(1, group)] + [group] * draw.integer(0, 2)
        if draw.integer(0, 2) == 0:
            lengths[draw.integer(0, len(lengths) - 1)] += draw.rng.choice([-1, 1])
        word = mark.join(draw.word("0123456789", length=length) for length in lengths)
        noise = draw.rng.choice(["", "", "", "", "", mark, "-", "x", "_"])
        words.append(draw.rng.choice(["", "", "-"]) + draw.rng.choice([word + noise, noise + word]))
    return (" ".join(word for word in words if word),)


@family(
    "parsing",
    group=(2, 3, 4),
    mark=("_", "'", ","),
    inputs=_numerals,
    edges=lambda draw: [
        ("",),
        ("-",),
        ("5 0 -5 -7",),
        (str(draw.parameters["mark"]) + "1" * int(draw.parameters["group"]),),
        ("1" * int(draw.parameters["group"]) + " " + "2" * (int(draw.parameters["group"]) + 1),),
        (
            "1{0}{1} 2{0}{1}3 4{0} 5{0}{0}{1} --6{0}{1}".format(
                draw.parameters["mark"], "0" * int(draw.parameters["group"])
            ),
        ),
    ],
)
def add_numerals(text: str, *, group: int, mark: str) -> int:
    """The words of `text` are separated by blanks. A word is a number if it is, in this order: a
    "-" or nothing; 1 to {group} digits; any number of times (or never) a {mark} sign followed by
    exactly {group} digits. The {mark} signs have no meaning beyond that. Return the sum of the
    numbers; ignore other words.
    """
    total = 0
    for word in text.split():
        first, *rest = word.removeprefix("-").split(mark)
        fits = 1 <= len(first) <= group and all(len(digits) == group for digits in rest)
        digits = first + "".join(rest)
        if fits and digits.isdigit():
            total += -int(digits) if word.startswith("-") else int(digits)
    return total


def _durations(draw: Draw) -> Args:
    """Return durations, about half of them with an error."""
    words: list[str] = []
    for _ in range(draw.size // 2):
        units = [unit for unit in "wdh" if draw.integer(0, 1)]
        parts = [f"{draw.integer(0, 25)}{unit}" for unit in units]
        if draw.integer(0, 3) == 0:
            parts += draw.rng.choice([["3"], ["1h"], ["2d"], ["d"], ["2m"]])
        if draw.integer(0, 5) == 0:
            draw.rng.shuffle(parts)
        words.append("".join(parts) or "h")
    return (" ".join(words),)


@family(
    "parsing",
    week=(4, 5, 6, 7),
    day=(8, 10, 24),
    inputs=_durations,
    edges=lambda draw: [
        ("",),
        ("1w 1d 1h",),
        ("1h1d 1d1w 2d3d",),
        ("w 7 h3 3",),
        ("1w2d3h 10w0d 005h 1w2",),
        ("1w2h 1d2h 1d2h.",),
    ],
)
def add_durations(text: str, *, week: int, day: int) -> int:
    """The words of `text` are separated by blanks. A word is a duration if it is one or more of
    these parts, each at most once and in this order: a whole number and "w" (weeks), one and
    "d" (days), one and "h" (hours). A week has {week} days and a day {day} hours. Return the total
    of all durations in hours; ignore other words.
    """
    hours = {"w": week * day, "d": day, "h": 1}
    total = 0
    for word in text.split():
        number, left, sum_of_word = "", "wdh", 0
        for c in word:
            if c.isdigit():
                number += c
            elif number and c in left:
                sum_of_word += int(number) * hours[c]
                number, left = "", left[left.index(c) + 1 :]
            else:
                break
        else:
            if not number:
                total += sum_of_word
    return total


def _globs(draw: Draw) -> Args:
    """Return a pattern, and words that mostly nearly match it."""
    least, most = int(draw.parameters["least"]), int(draw.parameters["most"])
    pattern = draw.word("aab?*", length=draw.integer(min(1, draw.size), 2 + draw.size // 8))
    words: list[str] = []
    for _ in range(draw.size // 2):
        word = ""
        for c in pattern:
            length = draw.integer(max(0, least - 1), most + 1) if c == "*" else 1
            word += c if c in "ab" and draw.integer(0, 9) else draw.word("ab", length=length)
        words.append(word or "b")
    return pattern, words


@family(
    "parsing",
    least=(0, 1, 2),
    most=(2, 3, 4),
    inputs=_globs,
    edges=lambda draw: [
        ("", ["a"]),
        ("ab?", []),
        ("*", ["a" * length for length in range(1, 6)]),
        ("a*a", ["a", "aa", "aba", "aabba", "aaaaaa", "abbbbba"]),
        ("**a", ["b" * length + "a" for length in range(10)]),
        ("?a", ["ba", "ab", "a", "aa", "aaa", "?a"]),
    ],
)
def match_words(pattern: str, words: list[str], *, least: int, most: int) -> list[int]:
    """In `pattern`, ? stands for any one character, * for any {least} to {most} characters, and any
    other character for itself. Return, in order, the positions (from 0) of those of the `words`
    that the whole pattern fits from their first character to their last.
    """
    matching: list[int] = []
    for i, word in enumerate(words):
        places = {0}
        for c in pattern:
            if c == "*":
                places = {p + k for p in places for k in range(least, most + 1)}
            else:
                places = {p + 1 for p in places if c == "?" or word[p : p + 1] == c}
        if len(word) in places:
            matching.append(i)
    return matching


FAMILIES: tuple[Family, ...] = (
    find_bracket_error,
    expand_text,
    read_settings,
    split_fields,
    add_numerals,
    add_durations,
    match_words,
)
