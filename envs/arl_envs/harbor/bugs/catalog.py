"""The libraries in which bugs are planted, with their cases and with other names for variants."""

from __future__ import annotations

from . import cases
from .library import Library

_ALL = (
    Library(
        "spans",
        "Package spans: lists of spans (start, end), and rooms that are booked by the hour.",
        {
            "test_ranges": cases.ranges_case,
            "test_holds": cases.holds_case,
            "test_room": cases.room_case,
        },
        {"spans": ("ranks", "strips"), "merge": ("unite", "fuse"), "merged": ("united", "kept")},
    ),
    Library(
        "textfit",
        "Package textfit: text in lines of limited width, and plain tables.",
        {"test_wrap": cases.wrap_case, "test_cut": cases.cut_case, "test_table": cases.table_case},
        {"textfit": ("columns", "typeset"), "wrap": ("fold", "fill"), "word": ("part", "piece")},
    ),
    Library(
        "calc",
        "Package calc: a calculator of whole numbers with names.",
        {"test_parse": cases.parse_case, "test_value": cases.value_case},
        {"calc": ("reckon", "sums"), "tree": ("node", "form"), "letter": ("char", "sign_at")},
    ),
    Library(
        "grid",
        "Package grid: matrices of whole numbers, as lists of rows.",
        {"test_basic": cases.basic_case, "test_deep": cases.deep_case},
        {
            "grid": ("matrices", "arrays"),
            "total": ("result", "value"),
            "row": ("line_of", "across"),
        },
    ),
    Library(
        "lru",
        "Package lru: caches of limited size, with and without an age of entries.",
        {"test_cache": cases.cache_case, "test_aging": cases.aging_case},
        {"lru": ("memo", "keeper"), "used": ("recent", "uses"), "key": ("name", "label")},
    ),
    Library(
        "bank",
        "Package bank: accounts, transfers and statements; amounts are in cents.",
        {
            "test_account": cases.account_case,
            "test_bank": cases.bank_case,
            "test_statement": cases.statement_case,
        },
        {
            "balance": ("saldo", "funds"),
            "amount": ("cents_in", "sum_of"),
            "owner": ("holder", "name_of"),
        },
    ),
    Library(
        "dates",
        "Package dates: arithmetic with dates (year, month, day), and days of the week.",
        {"test_days": cases.days_case, "test_weeks": cases.weeks_case},
        {
            "dates": ("almanac", "agenda"),
            "between": ("days_from", "distance"),
            "after": ("later", "plus"),
        },
    ),
    Library(
        "routes",
        "Package routes: a map of places and roads, and work in the order of its needs.",
        {"test_roads": cases.roads_case, "test_order": cases.order_case},
        {"routes": ("atlas", "journey"), "place": ("town", "spot"), "needs": ("wants", "asks")},
    ),
    Library(
        "settings",
        "Package settings: files of settings with sections, read, compared and written.",
        {"test_reading": cases.reading_case, "test_using": cases.using_case},
        {
            "settings": ("options", "prefs"),
            "sections": ("groups", "parts"),
            "key": ("name_of", "field"),
        },
    ),
    Library(
        "numerals",
        "Package numerals: Roman numerals, numbers in words, groups of digits, ordinals.",
        {"test_roman": cases.roman_case, "test_words": cases.in_words_case},
        {
            "numerals": ("figures", "spell"),
            "number": ("amount", "count_of"),
            "rest": ("left", "more"),
        },
    ),
    Library(
        "packing",
        "Package packing: run lengths, differences, and numbers as bytes of seven bits.",
        {"test_runs": cases.runs_case, "test_steps": cases.numbers_case},
        {"packing": ("squeeze", "coding"), "count": ("times", "size"), "found": ("result", "made")},
    ),
    Library(
        "planner",
        "Package planner: a heap, a queue of jobs by rank, and machines that share work.",
        {"test_heap": cases.heap_case, "test_jobs": cases.jobs_case},
        {"planner": ("schedule", "queueing"), "place": ("spot", "at"), "items": ("data", "stored")},
    ),
    Library(
        "stock",
        "Package stock: the goods of a store, orders, boxes, and sales.",
        {
            "test_goods": cases.goods_case,
            "test_orders": cases.orders_case,
            "test_store": cases.store_case,
        },
        {"stock": ("depot", "shop"), "order": ("request", "wishes"), "total": ("result", "value")},
    ),
    Library(
        "units",
        "Package units: lengths and times in other units, and as people say them.",
        {"test_convert": cases.convert_case, "test_spoken": cases.spoken_case},
        {"units": ("measures", "gauge"), "amount": ("number", "many"), "table": ("kinds", "sizes")},
    ),
)
LIBRARIES = {library.name: library for library in _ALL}
"""The libraries by name."""
