"""The sales: products, new orders, additions to an order, its city, and partial refunds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl.gym.tool_env import ToolError, tool
from arl_envs.tools.words import CITIES

from .orders import Orders


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
