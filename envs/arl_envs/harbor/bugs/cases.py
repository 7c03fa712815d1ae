"""The cases of the libraries: each function draws calls that include the edge cases of the function
under test."""

from __future__ import annotations

import random

from .program import Case, call, do, new

WORDS = ("a", "we", "red", "tree", "stone", "planet", "window", "elephant")
NAMES = ("ann", "bob", "cy", "dee", "eve")


def _spans(rng: random.Random, most: int = 4) -> list[tuple[int, int]]:
    starts = [rng.randint(0, 12) for _ in range(rng.randint(0, most))]
    return [(start, start + rng.randint(-1, 5)) for start in starts]


def ranges_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_ranges."""
    low = rng.randint(0, 6)
    return [
        call("spans.ranges:merge", _spans(rng)),
        call("spans.ranges:length", _spans(rng)),
        call("spans.ranges:gaps", _spans(rng), low, low + rng.randint(2, 12)),
    ]


def holds_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_holds."""
    first, second = _spans(rng, 3), _spans(rng, 3)
    edges = [place for span in first for place in span] or [1]
    return [
        call("spans.ranges:holds", first, rng.choice(edges)),
        call("spans.ranges:common", first, second),
        call("spans.ranges:common", [(2, 6), (8, 12)], second),
    ]


def room_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_room."""
    case = [new("spans.bookings:Room", *rng.choice([(), (8, 18), (6, 14), (9,)]))]
    for _ in range(rng.randint(2, 5)):
        start = rng.randint(6, 17)
        case.append(do("book", start, start + rng.randint(0, 3)))
    start = rng.randint(8, 12)
    case += [do("book", start, start + 1), do("cancel", start, start + 1), do("hours")]
    return [*case, do("free"), do("longest")]


def _line(rng: random.Random, most: int = 6) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, most)))


def wrap_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_wrap."""
    width = rng.randint(4, 14)
    line = _line(rng, 3)
    return [
        call("textfit.lines:wrap", _line(rng, 9), width),
        call("textfit.lines:justify", line, len(line) + rng.randint(0, 5)),
    ]


def cut_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_cut."""
    text = _line(rng, 4)
    width = rng.choice([len(text), max(len(text) - 1, 0), rng.randint(0, 9)])
    lines = [rng.choice(WORDS) for _ in range(rng.randint(1, 3))]
    more = rng.choice([[], [rng.randint(0, 3)]])
    return [
        call("textfit.lines:shorten", text, width, *rng.choice([[], ["~"], ["..."]])),
        call("textfit.lines:indent", lines, rng.randint(1, 4), *more),
    ]


def table_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_table."""
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


def parse_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_parse."""
    bad = rng.choice(["1 +", "(1", "2 3", "a $ b", ")", "1 + * 2", "(2 + 3", "a_1b2 + 4"])
    return [
        call("calc.parser:parse", _expression(rng, 2)),
        call("calc.parser:parse", bad),
        call("calc.tokens:tokenize", _expression(rng, 2).replace(" ", "")),
    ]


def value_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_value."""
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


def basic_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_basic."""
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


def deep_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_deep."""
    size = rng.randint(1, 3)
    costs = [[rng.randint(1, 9) for _ in range(size + 1)] for _ in range(rng.randint(1, 4))]
    return [
        call("grid.deep:power", _matrix(rng, 2, 2), rng.randint(0, 6)),
        call("grid.deep:determinant", _matrix(rng, size, size)),
        call("grid.deep:determinant", rng.choice([[], _matrix(rng, 2, 3), _matrix(rng, 3, 3)])),
        call("grid.deep:minor", _matrix(rng, 3, 3), rng.randint(0, 2), rng.randint(0, 2)),
        call("grid.deep:cheapest_path", costs),
    ]


def cache_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_cache."""
    case = [new("lru.cache:Cache", *rng.choice([(), (1,), (2,), (0,)]))]
    if case[0]["args"] == [0]:
        return case
    for _ in range(rng.randint(5, 11)):
        key = rng.choice("abcd")
        case.append(
            rng.choice([do("put", key, rng.randint(1, 9)), do("get", key), do("get", key, 0)])
        )
    return [*case, do("drop", rng.choice("abcd")), do("keys"), do("rate")]


def aging_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_aging."""
    case = [new("lru.aging:AgingCache", *rng.choice([(), (2,), (2, 3), (3, 2)]))]
    for _ in range(rng.randint(5, 10)):
        key = rng.choice("abcd")
        tick = do("tick", *rng.choice([[], [2], [3]]))
        case.append(rng.choice([do("put", key, rng.randint(1, 9)), do("get", key), tick]))
    return [*case, do("get", "a"), do("fresh")]


def account_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_account."""
    case = [new("bank.account:Account", "ann", *rng.choice([(), (100,)]))]
    for _ in range(rng.randint(3, 7)):
        amount = rng.choice([0, 20, 50, 100, 200])
        taken = do("withdraw", amount, *rng.choice([[], [5], [20]]))
        case.append(rng.choice([do("deposit", amount), do("deposit", 50), taken]))
    case.append(do("interest", rng.choice([0, 3, 10])))
    return [*case, do("total", rng.choice(["in", "out", "fee", "interest"]))]


def bank_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_bank."""
    case = [new("bank.bank:Bank", *rng.choice([(), (0,), (10,)]))]
    for name in NAMES[:3]:
        case.append(do("open", name, rng.choice([0, 100, 200]), rng.choice([0, 50])))
    for _ in range(rng.randint(2, 5)):
        sender, receiver = rng.choice(NAMES[:3]), rng.choice(NAMES[:3])
        case.append(do("move", sender, receiver, rng.choice([0, 45, 95, 100, 190])))
    case += [do("open", "ann"), do("year", rng.choice([2, 10])), do("richest")]
    return [*case, do("balance", "ann"), do("balance", rng.choice(["bob", "zoe"]))]


def statement_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_statement."""
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


def days_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_days."""
    first = _date(rng)
    year = first[0] + rng.randint(0, 2)
    return [
        call("dates.days:days_in", rng.choice([1900, 2000, 2024, 2025]), rng.randint(0, 13)),
        call("dates.days:days_in", rng.choice([1900, 2000, 2024, 2025]), 2),
        call("dates.days:day_of_year", first),
        call("dates.days:after", first, rng.choice([0, 1, 2, 30, 31, 365, 400])),
        call("dates.days:between", first, (year, rng.randint(1, 12), 5)),
    ]


def weeks_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_weeks."""
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


def roads_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_roads."""
    case = [new("routes.roads:Roads")]
    for _ in range(rng.randint(3, 7)):
        one, other = rng.choice("abcdef"), rng.choice("abcdef")
        case.append(do("add", one, other, *rng.choice([[], [rng.randint(1, 9)]])))
    case.append(do("remove", rng.choice("abc"), rng.choice("abc")))
    start, end = rng.choice("abc"), rng.choice("cdef")
    case += [do("stops", start, end), do("shortest", start, end), do("shortest", end, "a")]
    return [*case, do("length"), do("islands"), do("neighbors", start)]


def order_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_order."""
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


def reading_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_reading."""
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


def using_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_using."""
    one, other = _sections(rng), _sections(rng)
    path = rng.choice(["main.size", "page", "net.on", "none.x", "page.top"])
    changes = {**other, "main": {"size": None, "on": 1}}
    return [
        call("settings.using:lookup", one, path, *rng.choice([[], [0]])),
        call("settings.using:merged", one, changes),
        call("settings.using:difference", one, other),
        call("settings.using:written", one),
    ]


def roman_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_roman."""
    number = rng.choice([0, 4000, 1, 3999, 40, 49, 944, rng.randint(1, 3999)])
    text = rng.choice(["XIV", "MCMXC", "IIII", "", "ABC", "CDXLIV", "VX", "MMXXIV"])
    return [call("numerals.roman:to_roman", number), call("numerals.roman:from_roman", text)]


def in_words_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_words."""
    number = rng.choice([0, 19, 20, 45, 99, 100, 101, 999, 1000, 2005, 7120, -12, 90817])
    return [
        call("numerals.words:in_words", rng.choice([number, rng.randint(0, 99999)])),
        call("numerals.words:grouped", rng.choice([0, 999, 1000, -1234567, rng.randint(0, 10**6)])),
        call("numerals.words:grouped", rng.randint(0, 10**7), *rng.choice([[], [2], [4, "."]])),
        call("numerals.words:ordinal", rng.choice([1, 2, 3, 4, 10, 11, 12, 13, 21, 22, 23, 111])),
    ]


def runs_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_runs."""
    text = "".join(rng.choice("abc") * rng.choice([1, 1, 2, 3, 11]) for _ in range(4))
    packed = rng.choice(["3ab2c", "12x", "a2", "", "4a4b", "a1b"])
    return [
        call("packing.runs:pack", rng.choice([text, text, "a1"]), *rng.choice([[], [3], [1]])),
        call("packing.runs:unpack", packed),
        call("packing.runs:longest", rng.choice([text, [], [1, 1, 2, 2]])),
        call("packing.runs:runs", [rng.randint(1, 2) for _ in range(rng.randint(0, 6))]),
    ]


def numbers_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_steps."""
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


def heap_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_heap."""
    items = [rng.randint(0, 9) for _ in range(rng.randint(0, 7))]
    case = [new("planner.heap:Heap", *rng.choice([[], [items]]))]
    case += [do("push", rng.randint(0, 9)) for _ in range(rng.randint(1, 6))]
    case += [do("pop"), do("smallest", *rng.choice([[], [3], [9]])), do("push", 4), do("size")]
    return [*case, do("pop"), do("pop"), do("pop"), new("planner.heap:Heap"), do("pop")]


def jobs_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_jobs."""
    case = [new("planner.jobs:Jobs", *rng.choice([(), (2,), (4,)]))]
    for name in rng.sample(NAMES, rng.randint(2, 5)):
        case.append(do("add", name, *rng.choice([[], [3], [7], [4]])))
    case += [do("next_names", rng.randint(1, 3)), do("drop", rng.choice(NAMES))]
    costs = [rng.randint(1, 9) for _ in range(rng.randint(1, 6))]
    case.append(call("planner.jobs:spread", costs, rng.randint(1, 3)))
    return [*case, do("take"), do("add", "fay"), do("take"), do("take"), do("take")]


def goods_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_goods."""
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


def orders_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_orders."""
    prices = {"nut": 10, "pin": 5, "rod": 20}
    return [
        call("stock.orders:price", _list(rng), prices, *rng.choice([[], [50], [80, 25], [20, 5]])),
        call("stock.orders:price", [("nut", 10)], prices),
        call("stock.orders:joined", [_list(rng), _list(rng)]),
        call("stock.orders:joined", [_list(rng)], *rng.choice([[], [_list(rng, 1)]])),
        call("stock.orders:boxes", _list(rng), rng.randint(2, 7)),
    ]


def store_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_store."""
    case = [new("stock.store:Store", {"nut": 10, "pin": 5, "rod": 30}, *rng.choice([[], [5]]))]
    for name in ("nut", "pin", "rod"):
        case.append(do("arrive", name, rng.randint(1, 9)))
    case += [do("sell", _list(rng)) for _ in range(rng.randint(2, 4))]
    return [*case, do("wanted"), do("report")]


def convert_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_convert."""
    lengths, times = ("mm", "cm", "m", "km"), ("s", "min", "h", "d")
    one, other = rng.choice([rng.sample(lengths, 2), rng.sample(times, 2), ["m", "h"]])
    amount = rng.choice([1, 5, 49, 50, 90, 150, 1499, 1500, 86400])
    text = rng.choice(["12 km", "7min", "cm", "3 miles", "40s", "1 2 m", "250 mm"])
    return [
        call("units.convert:convert", amount, one, other),
        call("units.convert:parse", text),
        call("units.convert:celsius", rng.choice([32, 212, 100, 0, 33])),
    ]


def spoken_case(rng: random.Random) -> Case:
    """Draw a case of the visible test test_spoken."""
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
