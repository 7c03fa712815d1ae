"""The orders: they can be found, shown, cancelled, shipped and refunded. The sales: products, new
orders, additions to an order, its city, and partial refunds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl import ToolError, tool
from arl_envs.tools.words import CITIES

from .rules import Rulebook

REFUND_DAYS = 30


class Orders(Rulebook):
    """The tools for orders. Only open orders can be cancelled, and only paid ones shipped; money is
    paid back once, for cancelled orders or within 30 days of delivery."""

    @tool
    def find_order(self, name: str) -> str:
        """Find a customer's orders."""
        found = self.database.all(
            "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer"
            " WHERE c.name = ? COLLATE NOCASE ORDER BY o.id",
            name.strip(),
        )
        if not found:
            raise ToolError("no order of that name")
        return ", ".join(str(each) for (each,) in found)

    @tool
    def get_order(self, order: int) -> str:
        """Show an order."""
        _, _, status, days, city = self.row("orders", order, "order")
        items = self.database.all(
            "SELECT l.quantity, p.name FROM lines l JOIN products p ON p.id = l.product"
            " WHERE l.orders = ? ORDER BY p.name",
            order,
        )
        paid, refunded = self._paid(order)
        when = f" {days} days ago" if status == "delivered" else ""
        listed = ", ".join(f"{quantity} {name}" for quantity, name in items)
        return (
            f"status {status}{when}; total {self._total(order)}; paid {paid}; "
            f"refunded {refunded}; items {listed}; city {city}"
        )

    @tool
    def cancel_order(self, order: int) -> str:
        """Cancel an order."""
        self._must_be_open(order, "cancel_order", {"order": order})
        self.database.run(
            "UPDATE products SET stock = stock + (SELECT SUM(quantity) FROM lines"
            " WHERE orders = ? AND product = products.id)"
            " WHERE id IN (SELECT product FROM lines WHERE orders = ?)",
            order,
            order,
        )
        self.database.run("UPDATE orders SET status = 'cancelled' WHERE id = ?", order)
        return "ok"

    @tool
    def ship_order(self, order: int) -> str:
        """Send an order."""
        self._must_be_open(order, "ship_order", {"order": order})
        if self._paid(order)[0] < self._total(order):
            raise self.refuse("order is not paid", "ship_order", {"order": order})
        self.database.run("UPDATE orders SET status = 'shipped' WHERE id = ?", order)
        return "ok"

    @tool
    def refund_order(self, order: int) -> str:
        """Pay an order back."""
        self._must_be_returnable(order, "refund_order", {"order": order})
        self.database.run("UPDATE payments SET refunded = amount WHERE orders = ?", order)
        return "ok"

    def _must_be_open(self, order: int, tool: str, arguments: Mapping[str, Any]) -> None:
        status = self.row("orders", order, "order")[2]
        if status != "open":
            raise self.refuse(f"order is {status}", tool, arguments)

    def _must_be_returnable(self, order: int, tool: str, arguments: Mapping[str, Any]) -> None:
        _, _, status, days, _ = self.row("orders", order, "order")
        paid, refunded = self._paid(order)
        reason = ""
        if status not in ("delivered", "cancelled"):
            reason = f"order is {status}"
        elif status == "delivered" and days > REFUND_DAYS:
            reason = f"delivered {days} days ago"
        elif paid <= refunded:
            reason = "nothing to pay back"
        if reason:
            raise self.refuse(reason, tool, arguments)

    def _total(self, order: int) -> int:
        query = (
            "SELECT COALESCE(SUM(l.quantity * p.price), 0) FROM lines l"
            " JOIN products p ON p.id = l.product WHERE l.orders = ?"
        )
        return self.database.all(query, order)[0][0]

    def _paid(self, order: int) -> tuple[int, int]:
        found = self.database.all("SELECT amount, refunded FROM payments WHERE orders = ?", order)
        return found[0] if found else (0, 0)


class Sales(Orders):
    """The tools for sales. Only products in stock are sold; only an open order can be changed."""

    @tool
    def find_product(self, name: str) -> str:
        """Find a product: its number, price and stock."""
        found = self.database.all(
            "SELECT id, name, price, stock FROM products WHERE name = ? COLLATE NOCASE",
            name.strip(),
        )
        if not found:
            raise ToolError("no product of that name")
        key, product, price, stock = found[0]
        return f"{key}: {product}; price {price}; stock {stock}"

    @tool
    def create_order(self, customer: int, product: int, quantity: int) -> str:
        """Place an order for a customer."""
        city = self.row("customers", customer, "customer")[2]
        arguments = {"customer": customer, "product": product, "quantity": quantity}
        self._take(product, quantity, "create_order", arguments)
        order = 1 + max(self.database.all("SELECT MAX(id) FROM orders")[0][0] or 0, 99)
        self.database.run("INSERT INTO orders VALUES (?, ?, 'open', 0, ?)", order, customer, city)
        self.database.run("INSERT INTO lines VALUES (?, ?, ?)", order, product, quantity)
        return f"order {order}"

    @tool
    def add_item(self, order: int, product: int, quantity: int) -> str:
        """Add a product to an open order."""
        arguments = {"order": order, "product": product, "quantity": quantity}
        self._must_be_open(order, "add_item", arguments)
        self._take(product, quantity, "add_item", arguments)
        where = "WHERE orders = ? AND product = ?"
        if self.database.all(f"SELECT 1 FROM lines {where}", order, product):
            self.database.run(
                f"UPDATE lines SET quantity = quantity + ? {where}", quantity, order, product
            )
        else:
            self.database.run("INSERT INTO lines VALUES (?, ?, ?)", order, product, quantity)
        return "ok"

    @tool
    def change_city(self, order: int, city: str) -> str:
        """Send an open order to another city."""
        if city not in CITIES:
            raise ToolError(f"no such city; there are {', '.join(CITIES)}")
        self._must_be_open(order, "change_city", {"order": order, "city": city})
        self.database.run("UPDATE orders SET city = ? WHERE id = ?", city, order)
        return "ok"

    @tool
    def refund_part(self, order: int, amount: int) -> str:
        """Pay a part of an order back."""
        arguments = {"order": order, "amount": amount}
        self._must_be_returnable(order, "refund_part", arguments)
        paid, refunded = self._paid(order)
        if amount < 1:
            raise ToolError("the amount must be above 0")
        if amount > paid - refunded:
            raise self.refuse("more than was paid", "refund_part", arguments)
        self.database.run(
            "UPDATE payments SET refunded = refunded + ? WHERE orders = ?", amount, order
        )
        return "ok"

    def _take(self, product: int, quantity: int, tool: str, arguments: Mapping[str, Any]) -> None:
        """Take a quantity of a product out of the stock; refuse more than there is."""
        stock = self.row("products", product, "product")[3]
        if quantity < 1:
            raise ToolError("the quantity must be above 0")
        if quantity > stock:
            raise self.refuse("not in stock", tool, arguments)
        self.database.run("UPDATE products SET stock = stock - ? WHERE id = ?", quantity, product)
