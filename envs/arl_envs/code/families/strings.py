"""Texts and words: printable ASCII, in one line, without blanks at the ends."""

from __future__ import annotations

import string

from .family import Draw, Family, family


@family(
    "strings",
    shift=(1, 3, 7, 13, 20, 25),
    every=(1, 2, 3),
    inputs=lambda draw: (draw.word(string.ascii_letters + "-.!?079"),),
    edges=lambda draw: [("",), ("z",), ("aAzZ@[`{",), ("az-AZ" * 4,), ("xyzXYZabcABC",)],
)
def shift_letters(text: str, *, shift: int, every: int) -> str:
    """Move each letter of `text` whose index (from 0) is a multiple of {every} by {shift} places on
    in the alphabet, with a following z; capitals remain capitals. Leave all other characters as
    they are. Return the new text.
    """
    result = ""
    for i, char in enumerate(text):
        if i % every == 0 and "a" <= char <= "z":
            char = chr((ord(char) - 97 + shift) % 26 + 97)
        elif i % every == 0 and "A" <= char <= "Z":
            char = chr((ord(char) - 65 + shift) % 26 + 65)
        result += char
    return result


@family(
    "strings",
    least=range(1, 6),
    form=("its length and then its character", "its character and then its length"),
    inputs=lambda draw: ("".join(draw.runs("abcB", longest=draw.number("least") + 2)),),
    edges=lambda draw: [
        ("",),
        ("z",),
        ("a" * 12,),
        ("b" * draw.number("least"),),
        ("b" * (draw.number("least") - 1) + "a" * draw.number("least") + "b",),
    ],
    largest=30,
)
def encode_runs(text: str, *, least: int, form: str) -> str:
    """A run is a stretch of one and the same character that cannot be made longer. `text` is of
    letters: replace each run of {least} or more of them by {form}. Return the new text.
    """
    result = ""
    start = 0
    for i in range(1, len(text) + 1):
        if i == len(text) or text[i] != text[start]:
            length = i - start
            if length < least:
                result += text[start] * length
            elif form == "its length and then its character":
                result += str(length) + text[start]
            else:
                result += text[start] + str(length)
            start = i
    return result


@family(
    "strings",
    least=range(2, 6),
    nth=(2, 3, 4),
    inputs=lambda draw: (" ".join(draw.words("abcdeXYZ", length=draw.size // 2)),),
    edges=lambda draw: [
        ("",),
        ("aB",),
        ("ab abc abcd abcde abcdef a b c",),
        ("No lemon, no melon! Do geese see God?",),
    ],
)
def flip_words(text: str, *, least: int, nth: int) -> str:
    """The words of `text` are separated by single blanks. Reverse every word of at least {least}
    characters. Then number the words from 1, and write those whose number is a multiple of {nth} in
    capitals. Return the new text.
    """
    words = text.split()
    for i, word in enumerate(words):
        if len(word) >= least:
            word = word[::-1]
        if (i + 1) % nth == 0:
            word = word.upper()
        words[i] = word
    return " ".join(words)


@family(
    "strings",
    what=("letters", "vowels (a, e, i, o, u)", "different letters"),
    order=("fewest", "most"),
    tie=("alphabetical", "reverse alphabetical"),
    inputs=lambda draw: (draw.words("aeioubcd", longest=5),),
    edges=lambda draw: [
        ([],),
        (["a"],),
        (["b", "a", "b", "a"],),
        (["bb", "aa", "ab", "ba", "e", "b"],),
        (["aeiou", "queue", "zzzzzz", "you", "bcdfg"],),
    ],
    largest=16,
)
def sort_words(words: list[str], *, what: str, order: str, tie: str) -> list[str]:
    """Sort `words` (lower case) by their number of {what}: those with the {order} first, those with
    equally many in {tie} order.
    """
    result = sorted(words, reverse=tie == "reverse alphabetical")
    if what == "letters":
        counts = {word: len(word) for word in words}
    elif what == "different letters":
        counts = {word: len(set(word)) for word in words}
    else:
        counts = {word: sum(letter in "aeiou" for letter in word) for word in words}
    sign = 1 if order == "fewest" else -1
    return sorted(result, key=lambda word: sign * counts[word])


def _nearly_palindrome(draw: Draw) -> str:
    half = draw.word("abAB", length=draw.size // 2)
    text = [*half, *draw.word("abAB", length=draw.size % 2), *reversed(half)]
    wrong = min(len(half), draw.number("errors") + draw.integer(0, 1))
    for i in draw.rng.sample(range(len(half)), wrong):
        text[i] = "c" if draw.parameters["case"] == "the same letter" else text[i].swapcase()
    if draw.parameters["case"] == "the same letter":
        text = [draw.rng.choice((char, char.swapcase())) for char in text]
    return "".join(text)


@family(
    "strings",
    errors=range(0, 5),
    case=("the same letter", "different letters"),
    inputs=lambda draw: (_nearly_palindrome(draw),),
    edges=lambda draw: [
        ("",),
        ("aA" * draw.number("errors"),),
        ("aA" * (draw.number("errors") + 1),),
        ("a" * draw.number("errors") + "cb" + "c" * draw.number("errors"),),
        ("a" * draw.number("errors") + "cbc" + "b" * draw.number("errors"),),
    ],
    largest=40,
)
def check_palindrome(text: str, *, errors: int, case: str) -> bool:
    """Compare the first character of `text` with the last, the second with the last but one and so
    on, up to the middle. Return whether at most {errors} of these pairs differ. a and A are {case}.
    """
    if case == "the same letter":
        text = text.lower()
    wrong = 0
    for i in range(len(text) // 2):
        if text[i] != text[len(text) - 1 - i]:
            wrong += 1
    return wrong <= errors


def _related_words(draw: Draw) -> list[str]:
    """Return words of a few stems, with shuffled letters and sometimes a doubled letter."""
    stems = draw.words("abcd", longest=3, length=1 + draw.size // (1 + draw.number("least")))
    words = [draw.rng.choice(stems) for _ in range(draw.size)]
    words = [word + draw.rng.choice(("", word[0])) for word in words]
    return ["".join(draw.rng.sample(word, len(word))) for word in words]


@family(
    "strings",
    least=range(1, 5),
    alike=(
        "the same letters, each equally often",
        "the same set of letters",
        "the same first and the same last letter",
    ),
    inputs=lambda draw: (_related_words(draw),),
    edges=lambda draw: [
        ([],),
        (["ab"] * draw.number("least"),),
        (["ab", "ba", "aab", "bab", "ab", "abb"] * (draw.number("least") - 1) + ["ba"],),
        (["abc", "acbc", "cab", "bac", "bbca", "cba"],),
    ],
    largest=32,
)
def count_groups(words: list[str], *, least: int, alike: str) -> int:
    """Sort `words` into groups: two are in the same group if they have {alike}. Count the groups
    with at least {least} words; a word that is given twice counts twice.
    """
    groups: dict[str, int] = {}
    for word in words:
        if alike == "the same set of letters":
            key = "".join(sorted(set(word)))
        elif alike == "the same letters, each equally often":
            key = "".join(sorted(word))
        else:
            key = word[0] + word[-1]
        groups[key] = groups.get(key, 0) + 1
    return sum(count >= least for count in groups.values())


@family(
    "strings",
    group=range(2, 6),
    side=("left", "right"),
    separator=("_", ",", "."),
    inputs=lambda draw: (draw.rng.choice(("", "-")) + draw.word(string.digits),),
    edges=lambda draw: [
        ("",),
        ("7",),
        ("1" * draw.number("group"),),
        ("-" + "1" * draw.number("group"),),
        ("-1234567890123",),
    ],
)
def group_digits(text: str, *, group: int, side: str, separator: str) -> str:
    """`text` is of digits, perhaps with a minus sign in front, perhaps empty. Count the digits off
    in groups of {group} from the {side} and put "{separator}" between the groups; only the last one
    counted may be shorter. Keep the sign in front. Return the new text.
    """
    sign = "-" if text[:1] == "-" else ""
    digits = text[len(sign) :]
    first = len(digits) % group if side == "right" else 0
    parts = [digits[:first]] if first else []
    parts += [digits[i : i + group] for i in range(first, len(digits), group)]
    return sign + separator.join(parts)


@family(
    "strings",
    width=range(6, 16),
    inputs=lambda draw: (" ".join(draw.words("abc", longest=9)),),
    edges=lambda draw: [
        ("",),
        ("a" * (draw.number("width") + 1) + " a",),
        ("a b " + "c" * draw.number("width"),),
        ("a" * (draw.number("width") - 2) + " b c",),
        ("a" * (draw.number("width") - 1) + " b c",),
    ],
)
def wrap_words(text: str, *, width: int) -> list[int]:
    """Write the words of `text` in lines, single blanks between them: a word goes on the current
    line if that has then at most {width} characters, and otherwise starts a new one. A longer word
    has a line to itself. Return the length of each line.
    """
    lines: list[int] = []
    for word in text.split():
        if lines and lines[-1] + 1 + len(word) <= width:
            lines[-1] += 1 + len(word)
        else:
            lines.append(len(word))
    return lines


@family(
    "strings",
    one=range(1, 5),
    other=range(1, 5),
    inputs=lambda draw: (
        draw.word("abcde"),
        draw.word("VWXYZ", length=draw.integer(0, draw.size)),
    ),
    edges=lambda draw: [
        ("", ""),
        ("abc", ""),
        ("", "XYZ"),
        ("a" * draw.number("one"), "X" * draw.number("other")),
        ("abcdefghi", "XY"),
    ],
)
def weave_strings(first: str, second: str, *, one: int, other: int) -> str:
    """Build a string from `first` and `second`: take the next {one} characters of `first`, then the
    next {other} of `second`, and so on in turns until both are used up. Take what is left where
    fewer are left.
    """
    result = ""
    i = j = 0
    while i < len(first) or j < len(second):
        result += first[i : i + one] + second[j : j + other]
        i += one
        j += other
    return result


def _text_and_pattern(draw: Draw) -> tuple[str, str]:
    text = draw.word("ab")
    length = draw.number("errors") + draw.integer(1, 4)
    return text, draw.word("aabb" + str(draw.parameters["wild"]), length=length)


@family(
    "strings",
    wild=("?", "*", "."),
    errors=(0, 1, 2),
    inputs=_text_and_pattern,
    edges=lambda draw: [
        ("", "a"),
        ("aaaa", "aa"),
        ("abab", f"{draw.parameters['wild']}b"),
        ("ab" * draw.number("errors") + "a", "ab" * draw.number("errors") + "a"),
        ("aaaaaaaa", f"aba{draw.parameters['wild']}bb"),
    ],
)
def count_matches(text: str, pattern: str, *, wild: str, errors: int) -> int:
    """Lay `pattern` (not empty) over `text`, with its start at every index where it does not reach
    past the end. Count the indexes where at most {errors} of its characters differ from those below
    them; "{wild}" in `pattern` never differs.
    """
    count = 0
    for i in range(len(text) - len(pattern) + 1):
        wrong = 0
        for j, char in enumerate(pattern):
            if char != wild and char != text[i + j]:
                wrong += 1
        if wrong <= errors:
            count += 1
    return count


@family(
    "strings",
    rails=range(2, 7),
    start=("top", "bottom"),
    inputs=lambda draw: (draw.word(),),
    edges=lambda draw: [
        ("",),
        ("a",),
        ("abcdefghijkl"[: draw.number("rails")],),
        ("abcdefghijkl"[: 2 * draw.number("rails") - 1],),
    ],
)
def read_zigzag(text: str, *, rails: int, start: str) -> str:
    """Write `text` in a zigzag over {rails} rows, one character after another: start in the {start}
    row, go one row further with each character, and turn back at the top and the bottom row. Then
    read the rows from top to bottom, each from left to right.
    """
    rows = [""] * rails
    row, step = 0, 1
    for char in text:
        rows[row] += char
        if row + step < 0 or row + step >= rails:
            step = -step
        row += step
    if start == "bottom":
        rows.reverse()
    return "".join(rows)


@family(
    "strings",
    width=range(2, 7),
    columns=("left to right", "right to left"),
    way=("downwards", "upwards"),
    inputs=lambda draw: (draw.word(),),
    edges=lambda draw: [
        ("",),
        ("a",),
        ("abcdefghijkl"[: draw.number("width")],),
        ("abcdefghijkl"[: draw.number("width") + 1],),
    ],
)
def read_columns(text: str, *, width: int, columns: str, way: str) -> str:
    """Write `text` in rows of {width} characters from top to bottom; the last row may be shorter.
    Then read it by columns, from {columns}, each column {way}. Return what was read.
    """
    result = ""
    for i in range(width):
        column = text[(i if columns == "left to right" else width - 1 - i) :: width]
        result += column if way == "downwards" else column[::-1]
    return result


@family(
    "strings",
    side=("start", "end"),
    least=range(2, 6),
    tie=("first", "last"),
    inputs=lambda draw: (draw.words("ab", longest=6),),
    edges=lambda draw: [
        ([],),
        (["b"] * (draw.number("least") - 1) + ["a"] * draw.number("least"),),
        (["ba"] * (draw.number("least") - 1),),
        (["abab", "baba"] * draw.number("least"),),
        (["aab", "ab", "bab", "baa", "abb", "bbb"] * draw.number("least"),),
    ],
)
def find_affix(words: list[str], *, side: str, least: int, tie: str) -> str:
    """Return the longest string that at least {least} of `words` {side} with; a word can be that
    string itself, and equal words count separately. Of several longest return the alphabetically
    {tie}; if there is none, the empty string.
    """
    counts: dict[str, int] = {}
    for word in words:
        for length in range(1, len(word) + 1):
            part = word[:length] if side == "start" else word[len(word) - length :]
            counts[part] = counts.get(part, 0) + 1
    shared = sorted(part for part in counts if counts[part] >= least)
    if tie == "last":
        shared.reverse()
    return max(shared, key=len, default="")


FAMILIES: tuple[Family, ...] = (
    shift_letters,
    encode_runs,
    flip_words,
    sort_words,
    check_palindrome,
    count_groups,
    group_digits,
    wrap_words,
    weave_strings,
    count_matches,
    read_zigzag,
    read_columns,
    find_affix,
)
