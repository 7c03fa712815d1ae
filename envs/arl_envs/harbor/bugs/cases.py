"""The libraries with their cases: each group draws calls that meet the edges of what it tests."""

from __future__ import annotations

import random

from .library import Library
from .program import Case, call, do, new

WORDS = ("a", "we", "red", "tree", "stone", "planet", "window", "elephant")
NAMES = ("ann", "bob", "cy", "dee", "eve")


def _spans(rng: random.Random, most: int = 4) -> list[tuple[int, int]]:
    starts = [rng.randint(0, 12) for _ in range(rng.randint(0, most))]
    return [(start, start + rng.randint(-1, 5)) for start in starts]


def _ranges(rng: random.Random) -> Case:
    low = rng.randint(0, 6)
    return [
        call("spans.ranges:merge", _spans(rng)),
        call("spans.ranges:length", _spans(rng)),
        call("spans.ranges:gaps", _spans(rng), low, low + rng.randint(2, 12)),
    ]


def _holds(rng: random.Random) -> Case:
    first, second = _spans(rng, 3), _spans(rng, 3)
    edges = [place for span in first for place in span] or [1]
    return [
        call("spans.ranges:holds", first, rng.choice(edges)),
        call("spans.ranges:common", first, second),
        call("spans.ranges:common", [(2, 6), (8, 12)], second),
    ]


def _room(rng: random.Random) -> Case:
    case = [new("spans.bookings:Room", *rng.choice([(), (8, 18), (6, 14), (9,)]))]
    for _ in range(rng.randint(2, 5)):
        start = rng.randint(6, 17)
        case.append(do("book", start, start + rng.randint(0, 3)))
    start = rng.randint(8, 12)
    case += [do("book", start, start + 1), do("cancel", start, start + 1), do("hours")]
    return [*case, do("free"), do("longest")]


def _line(rng: random.Random, most: int = 6) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, most)))


def _wrap(rng: random.Random) -> Case:
    width = rng.randint(4, 14)
    line = _line(rng, 3)
    return [
        call("textfit.lines:wrap", _line(rng, 9), width),
        call("textfit.lines:justify", line, len(line) + rng.randint(0, 5)),
    ]


def _cut(rng: random.Random) -> Case:
    text = _line(rng, 4)
    width = rng.choice([len(text), max(len(text) - 1, 0), rng.randint(0, 9)])
    lines = [rng.choice(WORDS) for _ in range(rng.randint(1, 3))]
    more = rng.choice([[], [rng.randint(0, 3)]])
    return [
        call("textfit.lines:shorten", text, width, *rng.choice([[], ["~"], ["..."]])),
        call("textfit.lines:indent", lines, rng.randint(1, 4), *more),
    ]


def _table(rng: random.Random) -> Case:
    cells = [*WORDS, "7", "42", "1000", "a b c d e f g"]
    columns = rng.randint(1, 3)
    rows = [[rng.choice(cells) for _ in range(columns)] for _ in range(rng.randint(1, 3))]
    uneven = [[rng.choice(cells) for _ in range(rng.randint(0, 3))] for _ in range(3)]
    more = rng.choice([[], [5], [6, 1]])
    return [
        call("textfit.tables:render", rows, *more),
        call("textfit.tables:widths", uneven),
        call("textfit.tables:paragraph_rows", rng.choice(WORDS), _line(rng, 7), 9),
    ]


def _expression(rng: random.Random, depth: int = 3) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["a", "b", "x1", str(rng.randint(1, 30))])
    left, right = _expression(rng, depth - 1), _expression(rng, depth - 1)
    text = f"{left} {rng.choice('+-*/-/')} {right}"
    return rng.choice([text, text, f"({text})", f"-{left}"])


def _parse(rng: random.Random) -> Case:
    bad = rng.choice(["1 +", "(1", "2 3", "a $ b", ")", "1 + * 2", "(2 + 3", "a_1b2 + 4"])
    return [
        call("calc.parser:parse", _expression(rng, 2)),
        call("calc.parser:parse", bad),
        call("calc.tokens:tokenize", _expression(rng, 2).replace(" ", "")),
    ]


def _value(rng: random.Random) -> Case:
    numbers = {name: rng.randint(1, 9) for name in ("a", "b", "x1")}
    tree = ("-", ("*", ("name", "b"), ("name", "a")), ("/", ("name", "b"), ("number", 2)))
    lines = [f"{name} = {number}" for name, number in numbers.items()]
    asked = [_expression(rng) for _ in range(2)]
    return [
        call("calc.machine:run", [*lines, *asked]),
        call("calc.machine:run", ["x1 * 2", "b"], numbers),
        call("calc.machine:run", [_expression(rng, 1)]),
        call("calc.machine:names_in", tree),
    ]


def _matrix(rng: random.Random, rows: int, columns: int) -> list[list[int]]:
    return [[rng.randint(-4, 6) for _ in range(columns)] for _ in range(rows)]


def _basic(rng: random.Random) -> Case:
    rows, inner, columns = (rng.randint(1, 3) for _ in range(3))
    first = _matrix(rng, rows, inner)
    other = _matrix(rng, rng.choice([rows, rows, inner]), inner)
    return [
        call("grid.basic:multiply", first, _matrix(rng, inner, columns)),
        call("grid.basic:multiply", first, other),
        call("grid.basic:add", first, other, *rng.choice([[], [-1], [3]])),
        call("grid.basic:rotate", first),
        call("grid.basic:shape", rng.choice([first, [], [[1, 2], [3]]])),
        call("grid.basic:transpose", first),
    ]


def _deep(rng: random.Random) -> Case:
    size = rng.randint(1, 3)
    costs = [[rng.randint(1, 9) for _ in range(size + 1)] for _ in range(rng.randint(1, 4))]
    return [
        call("grid.deep:power", _matrix(rng, 2, 2), rng.randint(0, 6)),
        call("grid.deep:determinant", _matrix(rng, size, size)),
        call("grid.deep:determinant", rng.choice([[], _matrix(rng, 2, 3), _matrix(rng, 3, 3)])),
        call("grid.deep:minor", _matrix(rng, 3, 3), rng.randint(0, 2), rng.randint(0, 2)),
        call("grid.deep:cheapest_path", costs),
    ]


def _cache(rng: random.Random) -> Case:
    case = [new("lru.cache:Cache", *rng.choice([(), (1,), (2,), (0,)]))]
    if case[0]["args"] == [0]:
        return case
    for _ in range(rng.randint(5, 11)):
        key = rng.choice("abcd")
        case.append(
            rng.choice([do("put", key, rng.randint(1, 9)), do("get", key), do("get", key, 0)])
        )
    return [*case, do("drop", rng.choice("abcd")), do("keys"), do("rate")]


def _aging(rng: random.Random) -> Case:
    case = [new("lru.aging:AgingCache", *rng.choice([(), (2,), (2, 3), (3, 2)]))]
    for _ in range(rng.randint(5, 10)):
        key = rng.choice("abcd")
        tick = do("tick", *rng.choice([[], [2], [3]]))
        case.append(rng.choice([do("put", key, rng.randint(1, 9)), do("get", key), tick]))
    return [*case, do("get", "a"), do("fresh")]


def _account(rng: random.Random) -> Case:
    case = [new("bank.account:Account", "ann", *rng.choice([(), (100,)]))]
    for _ in range(rng.randint(3, 7)):
        amount = rng.choice([0, 20, 50, 100, 200])
        taken = do("withdraw", amount, *rng.choice([[], [5], [20]]))
        case.append(rng.choice([do("deposit", amount), do("deposit", 50), taken]))
    case.append(do("interest", rng.choice([0, 3, 10])))
    return [*case, do("total", rng.choice(["in", "out", "fee", "interest"]))]


def _bank(rng: random.Random) -> Case:
    case = [new("bank.bank:Bank", *rng.choice([(), (0,), (10,)]))]
    for name in NAMES[:3]:
        case.append(do("open", name, rng.choice([0, 100, 200]), rng.choice([0, 50])))
    for _ in range(rng.randint(2, 5)):
        sender, receiver = rng.choice(NAMES[:3]), rng.choice(NAMES[:3])
        case.append(do("move", sender, receiver, rng.choice([0, 45, 95, 100, 190])))
    case += [do("open", "ann"), do("year", rng.choice([2, 10])), do("richest")]
    return [*case, do("balance", "ann"), do("balance", rng.choice(["bob", "zoe"]))]


def _statement(rng: random.Random) -> Case:
    kinds = ("in", "out", "fee", "interest")
    bookings = [(rng.choice(kinds), rng.randint(1, 2000)) for _ in range(rng.randint(0, 4))]
    return [
        call("bank.statement:statement", bookings, *rng.choice([[], [-205], [1000]])),
        call("bank.statement:summary", bookings),
        call("bank.statement:summary", bookings, *rng.choice([[], [{"in": 7}]])),
        call("bank.statement:money", rng.choice([0, 5, 100, -1205, rng.randint(-999, 9999)])),
    ]


def _date(rng: random.Random) -> tuple[int, int, int]:
    month, day = rng.choice([(1, 1), (2, 28), (3, 1), (12, 31), (6, 15), (11, 30)])
    return rng.choice([1900, 2000, 2023, 2024, 2025, 2100]), month, day


def _days(rng: random.Random) -> Case:
    first = _date(rng)
    year = first[0] + rng.randint(0, 2)
    return [
        call("dates.days:days_in", rng.choice([1900, 2000, 2024, 2025]), rng.randint(0, 13)),
        call("dates.days:days_in", rng.choice([1900, 2000, 2024, 2025]), 2),
        call("dates.days:day_of_year", first),
        call("dates.days:after", first, rng.choice([0, 1, 2, 30, 31, 365, 400])),
        call("dates.days:between", first, (year, rng.randint(1, 12), 5)),
    ]


def _weeks(rng: random.Random) -> Case:
    date = (rng.choice([2023, 2024, 2025]), rng.randint(1, 12), rng.randint(1, 28))
    text = rng.choice(["2024-02-29", "2025-02-29", "2025-1", "2024-13-1", "2024-4-0", "2024-4-30"])
    return [
        call("dates.weeks:weekday", date),
        call("dates.weeks:next_weekday", date, rng.choice(["Mon", "Wed", "Sun", "May"])),
        call("dates.weeks:parse", text),
        call("dates.weeks:written", date, *rng.choice([[], ["."], ["/"], ["-"]])),
        call("dates.weeks:workdays", date, (2025, 12, 20))
        if date[0] == 2025 and date[1] > 10
        else call("dates.weeks:workdays", (2024, 2, 26), (2024, 3, rng.randint(1, 12))),
    ]


def _roads(rng: random.Random) -> Case:
    case = [new("routes.roads:Roads")]
    for _ in range(rng.randint(3, 7)):
        one, other = rng.choice("abcdef"), rng.choice("abcdef")
        case.append(do("add", one, other, *rng.choice([[], [rng.randint(1, 9)]])))
    case.append(do("remove", rng.choice("abc"), rng.choice("abc")))
    start, end = rng.choice("abc"), rng.choice("cdef")
    case += [do("stops", start, end), do("shortest", start, end), do("shortest", end, "a")]
    return [*case, do("length"), do("islands"), do("neighbors", start)]


def _order(rng: random.Random) -> Case:
    names = list("abcdef")
    rng.shuffle(names)
    needs = {
        name: rng.sample(names[place + 1 :], min(rng.randint(0, 2), len(names) - place - 1))
        for place, name in enumerate(names[:4])
    }
    if rng.random() < 0.25:
        needs[names[3]] = [names[0]]
    return [
        call("routes.order:in_order", needs),
        call("routes.order:levels", needs),
        call("routes.order:all_needs", needs, names[0]),
        call("routes.order:all_needs", needs, names[1]),
    ]


def _values(rng: random.Random) -> dict[str, object]:
    values = [5, -3, True, False, "red", [1, 2], ["x", True]]
    return {key: rng.choice(values) for key in rng.sample(["size", "color", "on", "top"], 2)}


def _sections(rng: random.Random) -> dict[str, dict[str, object]]:
    return {name: _values(rng) for name in rng.sample(["main", "page", "net"], 2)}


def _reading(rng: random.Random) -> Case:
    lines = [
        "[main]",
        "size = 5",
        " color=red # dark",
        "",
        "[ page ]",
        "on = yes",
        "list = 1,-2,no",
    ]
    lines += [
        "[main]",
        f"top = {rng.choice(['-7', 'no', 'a b', '', '--', chr(34) + '1' + chr(34)])}",
    ]
    more = rng.choice([[], [], ["size"], ["= 3"], ["[open"], ["a=b=c"]])
    if rng.random() < 0.15:
        lines = lines[1:]
    value = rng.choice(["12", "-4", "yes", "no", '"a,b"', "1,x", "word", "7-", '"', '""', " 8 "])
    return [
        call("settings.reading:parse", "\n".join([*lines, *more])),
        call("settings.reading:parse", "[a]\nb = 1 ; c", *rng.choice([[], [";"]])),
        call("settings.reading:value_of", value),
    ]


def _using(rng: random.Random) -> Case:
    one, other = _sections(rng), _sections(rng)
    path = rng.choice(["main.size", "page", "net.on", "none.x", "page.top"])
    changes = {**other, "main": {"size": None, "on": 1}}
    return [
        call("settings.using:lookup", one, path, *rng.choice([[], [0]])),
        call("settings.using:merged", one, changes),
        call("settings.using:difference", one, other),
        call("settings.using:written", one),
    ]


def _roman(rng: random.Random) -> Case:
    number = rng.choice([0, 4000, 1, 3999, 40, 49, 944, rng.randint(1, 3999)])
    text = rng.choice(["XIV", "MCMXC", "IIII", "", "ABC", "CDXLIV", "VX", "MMXXIV"])
    return [call("numerals.roman:to_roman", number), call("numerals.roman:from_roman", text)]


def _in_words(rng: random.Random) -> Case:
    number = rng.choice([0, 19, 20, 45, 99, 100, 101, 999, 1000, 2005, 7120, -12, 90817])
    return [
        call("numerals.words:in_words", rng.choice([number, rng.randint(0, 99999)])),
        call("numerals.words:grouped", rng.choice([0, 999, 1000, -1234567, rng.randint(0, 10**6)])),
        call("numerals.words:grouped", rng.randint(0, 10**7), *rng.choice([[], [2], [4, "."]])),
        call("numerals.words:ordinal", rng.choice([1, 2, 3, 4, 10, 11, 12, 13, 21, 22, 23, 111])),
    ]


def _runs(rng: random.Random) -> Case:
    text = "".join(rng.choice("abc") * rng.choice([1, 1, 2, 3, 11]) for _ in range(4))
    packed = rng.choice(["3ab2c", "12x", "a2", "", "4a4b", "a1b"])
    return [
        call("packing.runs:pack", rng.choice([text, text, "a1"]), *rng.choice([[], [3], [1]])),
        call("packing.runs:unpack", packed),
        call("packing.runs:longest", rng.choice([text, [], [1, 1, 2, 2]])),
        call("packing.runs:runs", [rng.randint(1, 2) for _ in range(rng.randint(0, 6))]),
    ]


def _numbers(rng: random.Random) -> Case:
    numbers = [rng.randint(-9, 20) for _ in range(rng.randint(0, 5))]
    data = [rng.choice([1, 127, 128, 129, 255]) for _ in range(rng.randint(0, 4))]
    number = rng.choice([0, 127, 128, 129, 300, 16384, -1, rng.randint(0, 10**6)])
    return [
        call("packing.steps:differences", numbers, *rng.choice([[], [4]])),
        call("packing.steps:sums", numbers, *rng.choice([[], [-2]])),
        call("packing.steps:to_bytes", number),
        call("packing.steps:from_bytes", rng.choice([data, [*data, 3]])),
        call("packing.steps:zigzag", rng.choice([-2, -1, 0, 1, 2])),
    ]


def _heap(rng: random.Random) -> Case:
    items = [rng.randint(0, 9) for _ in range(rng.randint(0, 7))]
    case = [new("planner.heap:Heap", *rng.choice([[], [items]]))]
    case += [do("push", rng.randint(0, 9)) for _ in range(rng.randint(1, 6))]
    case += [do("pop"), do("smallest", *rng.choice([[], [3], [9]])), do("push", 4), do("size")]
    return [*case, do("pop"), do("pop"), do("pop"), new("planner.heap:Heap"), do("pop")]


def _jobs(rng: random.Random) -> Case:
    case = [new("planner.jobs:Jobs", *rng.choice([(), (2,), (4,)]))]
    for name in rng.sample(NAMES, rng.randint(2, 5)):
        case.append(do("add", name, *rng.choice([[], [3], [7], [4]])))
    case += [do("next_names", rng.randint(1, 3)), do("drop", rng.choice(NAMES))]
    costs = [rng.randint(1, 9) for _ in range(rng.randint(1, 6))]
    case.append(call("planner.jobs:spread", costs, rng.randint(1, 3)))
    return [*case, do("take"), do("add", "fay"), do("take"), do("take"), do("take")]


def _goods(rng: random.Random) -> Case:
    case = [new("stock.goods:Goods", *rng.choice([(), (2,), (4,)]))]
    for _ in range(rng.randint(3, 7)):
        name, count = rng.choice(["nut", "pin", "rod"]), rng.randint(0, 4)
        price = rng.choice([[], [3], [5]])
        arrives = do("arrive", name, count, *price)
        case.append(rng.choice([arrives, arrives, do("take", name, rng.randint(1, 4))]))
    return [*case, do("take", "nut", 2), do("scarce"), do("worth")]


def _list(rng: random.Random, most: int = 3) -> list[tuple[str, int]]:
    count = rng.randint(1, most)
    return [(rng.choice(["nut", "pin", "rod"]), rng.randint(1, 6)) for _ in range(count)]


def _orders(rng: random.Random) -> Case:
    prices = {"nut": 10, "pin": 5, "rod": 20}
    return [
        call("stock.orders:price", _list(rng), prices, *rng.choice([[], [50], [80, 25], [20, 5]])),
        call("stock.orders:price", [("nut", 10)], prices),
        call("stock.orders:joined", [_list(rng), _list(rng)]),
        call("stock.orders:joined", [_list(rng)], *rng.choice([[], [_list(rng, 1)]])),
        call("stock.orders:boxes", _list(rng), rng.randint(2, 7)),
    ]


def _store(rng: random.Random) -> Case:
    case = [new("stock.store:Store", {"nut": 10, "pin": 5, "rod": 30}, *rng.choice([[], [5]]))]
    for name in ("nut", "pin", "rod"):
        case.append(do("arrive", name, rng.randint(1, 9)))
    case += [do("sell", _list(rng)) for _ in range(rng.randint(2, 4))]
    return [*case, do("wanted"), do("report")]


def _convert(rng: random.Random) -> Case:
    lengths, times = ("mm", "cm", "m", "km"), ("s", "min", "h", "d")
    one, other = rng.choice([rng.sample(lengths, 2), rng.sample(times, 2), ["m", "h"]])
    amount = rng.choice([1, 5, 49, 50, 90, 150, 1499, 1500, 86400])
    text = rng.choice(["12 km", "7min", "cm", "3 miles", "40s", "1 2 m", "250 mm"])
    return [
        call("units.convert:convert", amount, one, other),
        call("units.convert:parse", text),
        call("units.convert:celsius", rng.choice([32, 212, 100, 0, 33])),
    ]


def _spoken(rng: random.Random) -> Case:
    seconds = rng.choice([0, 59, 60, 61, 3600, 3661, 86400, 90061, rng.randint(0, 200000)])
    unit = rng.choice(["mm", "cm", "m", "km"])
    pairs = rng.choice([("1 m", "100 cm"), ("1 m", "99 cm"), ("2 h", "121 min"), ("3 s", "1 min")])
    texts = [rng.choice(["3 m", "20 cm", "1500 mm", "1 km"]) for _ in range(rng.randint(0, 3))]
    return [
        call("units.spoken:duration", seconds, *rng.choice([[], [1], [3], [4]])),
        call("units.spoken:clock", rng.choice([0, 59, 60, 545, 1439, 1440, 1505])),
        call("units.spoken:largest_unit", rng.choice([1, 10, 50, 1000, 3000, 10000]), unit),
        call("units.spoken:total", texts, rng.choice(["cm", "m"])),
        call("units.spoken:compare", *rng.choice([pairs, pairs[::-1]])),
    ]


_ALL = (
    Library(
        "spans",
        "Package spans: lists of spans (start, end), and rooms that are booked by the hour.",
        {"test_ranges": _ranges, "test_holds": _holds, "test_room": _room},
        {"spans": ("ranks", "strips"), "merge": ("unite", "fuse"), "merged": ("united", "kept")},
    ),
    Library(
        "textfit",
        "Package textfit: text in lines of limited width, and plain tables.",
        {"test_wrap": _wrap, "test_cut": _cut, "test_table": _table},
        {"textfit": ("columns", "typeset"), "wrap": ("fold", "fill"), "word": ("part", "piece")},
    ),
    Library(
        "calc",
        "Package calc: a calculator of whole numbers with names.",
        {"test_parse": _parse, "test_value": _value},
        {"calc": ("reckon", "sums"), "tree": ("node", "form"), "letter": ("char", "sign_at")},
    ),
    Library(
        "grid",
        "Package grid: matrices of whole numbers, as lists of rows.",
        {"test_basic": _basic, "test_deep": _deep},
        {
            "grid": ("matrices", "arrays"),
            "total": ("result", "value"),
            "row": ("line_of", "across"),
        },
    ),
    Library(
        "lru",
        "Package lru: caches of limited size, with and without an age of entries.",
        {"test_cache": _cache, "test_aging": _aging},
        {"lru": ("memo", "keeper"), "used": ("recent", "uses"), "key": ("name", "label")},
    ),
    Library(
        "bank",
        "Package bank: accounts, transfers and statements; amounts are in cents.",
        {"test_account": _account, "test_bank": _bank, "test_statement": _statement},
        {
            "balance": ("saldo", "funds"),
            "amount": ("cents_in", "sum_of"),
            "owner": ("holder", "name_of"),
        },
    ),
    Library(
        "dates",
        "Package dates: arithmetic with dates (year, month, day), and days of the week.",
        {"test_days": _days, "test_weeks": _weeks},
        {
            "dates": ("almanac", "agenda"),
            "between": ("days_from", "distance"),
            "after": ("later", "plus"),
        },
    ),
    Library(
        "routes",
        "Package routes: a map of places and roads, and work in the order of its needs.",
        {"test_roads": _roads, "test_order": _order},
        {"routes": ("atlas", "journey"), "place": ("town", "spot"), "needs": ("wants", "asks")},
    ),
    Library(
        "settings",
        "Package settings: files of settings with sections, read, compared and written.",
        {"test_reading": _reading, "test_using": _using},
        {
            "settings": ("options", "prefs"),
            "sections": ("groups", "parts"),
            "key": ("name_of", "field"),
        },
    ),
    Library(
        "numerals",
        "Package numerals: Roman numerals, numbers in words, groups of digits, ordinals.",
        {"test_roman": _roman, "test_words": _in_words},
        {
            "numerals": ("figures", "spell"),
            "number": ("amount", "count_of"),
            "rest": ("left", "more"),
        },
    ),
    Library(
        "packing",
        "Package packing: run lengths, differences, and numbers as bytes of seven bits.",
        {"test_runs": _runs, "test_steps": _numbers},
        {"packing": ("squeeze", "coding"), "count": ("times", "size"), "found": ("result", "made")},
    ),
    Library(
        "planner",
        "Package planner: a heap, a queue of jobs by rank, and machines that share work.",
        {"test_heap": _heap, "test_jobs": _jobs},
        {"planner": ("schedule", "queueing"), "place": ("spot", "at"), "items": ("data", "stored")},
    ),
    Library(
        "stock",
        "Package stock: the goods of a store, orders, boxes, and sales.",
        {"test_goods": _goods, "test_orders": _orders, "test_store": _store},
        {"stock": ("depot", "shop"), "order": ("request", "wishes"), "total": ("result", "value")},
    ),
    Library(
        "units",
        "Package units: lengths and times in other units, and as people say them.",
        {"test_convert": _convert, "test_spoken": _spoken},
        {"units": ("measures", "gauge"), "amount": ("number", "many"), "table": ("kinds", "sizes")},
    ),
)
LIBRARIES = {library.name: library for library in _ALL}
"""The libraries by name."""
