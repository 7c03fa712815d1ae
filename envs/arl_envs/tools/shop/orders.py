"""The orders: they can be found, shown, cancelled, shipped and refunded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.tool_env import ToolError, tool

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
