"""The shop's rules: what is allowed changes what it should, what is not changes nothing."""

import pytest
from arl_envs.tools.shop import Database, Desk, RuleRefusal

from agentgym_rl.gym import ToolError
from tests.kit.cases import cases

ROWS = {
    "customers": [(10, "Ann Lee", "Rome", 12345), (11, "Ann Roy", "Oslo", 54321)],
    "products": [(20, "lamp", 30, 5), (21, "desk", 100, 0)],
    "orders": [
        *((100, 10, "open", 0, "Rome"), (101, 10, "delivered", 30, "Rome")),
        *((102, 11, "delivered", 31, "Oslo"), (103, 11, "shipped", 0, "Oslo")),
        *((104, 11, "cancelled", 0, "Oslo"), (105, 10, "open", 0, "Rome")),
    ],
    "lines": [(order, 20, 2) for order in range(100, 106)] + [(100, 21, 1)],
    "payments": [(100, 160, 0), (101, 60, 0), (102, 60, 0), (103, 60, 0), (104, 60, 60)],
    "appointments": [(200, 10, 3, 9), (201, 11, 4, 10)],
    "tickets": [(300, 10, "bad smell", "open"), (301, 10, "lost invoice", "closed")],
}


def opened() -> Desk:
    return Desk(Database.of(ROWS), "salt")


DONE = [
    ("cancel_order", (100,), "SELECT id FROM orders WHERE status = 'cancelled'", [(100,), (104,)]),
    ("cancel_order", (100,), "SELECT stock FROM products", [(7,), (1,)]),
    ("ship_order", (100,), "SELECT status FROM orders WHERE id = 100", [("shipped",)]),
    ("refund_order", (101,), "SELECT refunded FROM payments WHERE orders = 101", [(60,)]),
    ("refund_part", (101, 59), "SELECT refunded FROM payments WHERE orders = 101", [(59,)]),
    ("change_city", (100, "Lima"), "SELECT city FROM orders WHERE id = 100", [("Lima",)]),
    ("create_order", (11, 20, 5), "SELECT id, city FROM orders WHERE id > 105", [(106, "Oslo")]),
    ("create_order", (11, 20, 5), "SELECT stock FROM products WHERE id = 20", [(0,)]),
    ("add_item", (100, 20, 1), "SELECT quantity FROM lines WHERE orders = 100", [(3,), (1,)]),
    ("add_item", (105, 20, 5), "SELECT quantity FROM lines WHERE orders = 105", [(7,)]),
    ("set_phone", (10, 99999), "SELECT phone FROM customers WHERE id = 10", [(99999,)]),
    ("book", (11, 3, 10), "SELECT * FROM appointments WHERE id > 201", [(202, 11, 3, 10)]),
    ("move_appointment", (200, 3, 10), "SELECT hour FROM appointments WHERE id = 200", [(10,)]),
    ("close_ticket", (300,), "SELECT status FROM tickets WHERE id = 300", [("closed",)]),
]


@cases("case", DONE, ids=range(len(DONE)))
def test_what_is_allowed_is_done(case):
    desk = opened()
    tool, arguments, query, wanted = case
    getattr(desk, tool)(*arguments)
    assert desk.database.all(query) == wanted
    assert not desk.refused


def test_what_was_changed_is_noted_though_it_is_put_back():
    desk = opened()
    desk.set_phone(10, 12345)
    assert desk.database.changed == set()
    for phone in (99999, 12345):
        desk.set_phone(10, phone)
    desk.add_item(100, 20, 1)
    noted = {("customers", 10), ("products", 20), ("lines", 100, 20)}
    assert desk.database.changed == noted


REFUSED = [
    *(("cancel_order", (order,), "order is ") for order in (101, 103, 104)),
    ("ship_order", (105,), "not paid"),
    ("ship_order", (103,), "order is shipped"),
    ("refund_order", (102,), "31 days ago"),
    ("refund_order", (104,), "nothing to pay back"),
    ("refund_order", (100,), "order is open"),
    ("refund_part", (101, 61), "more than was paid"),
    ("change_city", (103, "Lima"), "order is shipped"),
    ("create_order", (11, 20, 6), "not in stock"),
    ("create_order", (11, 21, 1), "not in stock"),
    ("add_item", (101, 20, 1), "order is delivered"),
    ("add_item", (100, 20, 6), "not in stock"),
    ("book", (11, 3, 9), "the hour is taken"),
    ("book", (11, 4, 9), "one appointment a day"),
    ("move_appointment", (200, 4, 10), "the hour is taken"),
    ("close_ticket", (301,), "ticket is closed"),
]


@cases("case", REFUSED, ids=range(len(REFUSED)))
def test_what_the_rules_forbid_is_refused_and_changes_nothing(case):
    desk = opened()
    tool, arguments, words = case
    before = desk.database.state()
    with pytest.raises(RuleRefusal, match=words):
        getattr(desk, tool)(*arguments)
    assert desk.database.state() == before
    assert [name for name, _ in desk.refused] == [tool]


NONSENSE = [
    *((tool, (10**30,)) for tool in ("get_order", "cancel_order", "get_customer", "close_ticket")),
    *(("get_order", (-1,)), ("set_phone", (10, 7)), ("change_city", (100, "Nowhere"))),
    *(("create_order", (11, 20, 0)), ("add_item", (100, 20, -5)), ("refund_part", (101, 0))),
    *(("create_order", (11, 99, 1)), ("book", (10, 31, 9)), ("book", (10, 1, 17))),
    *(("free_hours", (0,)), ("find_customer", ("",)), ("find_order", ("Ann",))),
    *(("find_product", ("la",)), ("find_customer", ("\0",)), ("refund_part", (101, -(10**30)))),
]


@cases("case", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_told_and_is_no_refusal(case):
    desk = opened()
    tool, arguments = case
    before = desk.database.state()
    with pytest.raises(ToolError) as raised:
        getattr(desk, tool)(*arguments)
    assert not isinstance(raised.value, RuleRefusal)
    assert (desk.database.state(), desk.refused) == (before, set())


def test_what_is_shown():
    desk = opened()
    assert desk.find_customer("ann") == "10: Ann Lee, Rome; 11: Ann Roy, Oslo"
    assert desk.find_customer("Ann  Roy") == "11: Ann Roy, Oslo"
    assert desk.find_order("ann lee") == "100, 101, 105"
    assert desk.list_orders(10).startswith("100 open (1 desk, 2 lamp); 101 delivered (2 lamp)")
    assert desk.get_order(101) == (
        "status delivered 30 days ago; total 60; paid 60; refunded 0; items 2 lamp; city Rome"
    )
    assert desk.find_product("Lamp") == "20: lamp; price 30; stock 5"
    assert desk.free_hours(3) == "10, 11, 12, 13, 14, 15, 16"
    assert desk.list_appointments(11) == "201: day 4 hour 10"
    assert desk.list_tickets(11) == "none"


def test_a_refusals_number_is_the_worlds_own():
    def number(salt: str, order: int) -> str:
        with pytest.raises(RuleRefusal) as raised:
            Desk(Database.of(ROWS), salt).cancel_order(order)
        return str(raised.value).split()[-1]

    assert number("a", 101) == number("a", 101)
    assert len({number(salt, order) for salt in "abcdef" for order in (101, 103)}) > 10
