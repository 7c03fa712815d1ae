"""One account."""


class Account:
    """An account with its balance and its bookings."""

    def __init__(self, owner, credit=0):
        self.owner = owner
        self.credit = credit
        self.balance = 0
        self.bookings = []

    def deposit(self, amount):
        """Add an amount; raise ValueError unless it is above 0; return the new balance."""
        if amount <= 0:
            raise ValueError("an amount must be above 0")
        self.balance += amount
        self.bookings.append(("in", amount))
        return self.balance

    def withdraw(self, amount, fee=0):
        """Take an amount and a fee; return False if balance and credit do not suffice."""
        if amount <= 0:
            raise ValueError("an amount must be above 0")
        if amount + fee > self.balance + self.credit:
            return False
        self.balance -= amount + fee
        self.bookings.append(("out", amount))
        if fee > 0:
            self.bookings.append(("fee", fee))
        return True

    def interest(self, percent):
        """Book the interest on a balance above 0, rounded down; return it."""
        if self.balance <= 0 or percent <= 0:
            return 0
        gain = self.balance * percent // 100
        self.balance += gain
        self.bookings.append(("interest", gain))
        return gain

    def total(self, kind):
        """Return the sum of the bookings of a kind."""
        return sum(amount for name, amount in self.bookings if name == kind)
