"""A bank with its accounts."""

from .account import Account


class Bank:
    """Accounts by their owners' names."""

    def __init__(self, fee=5):
        self.fee = fee
        self.accounts = {}

    def open(self, owner, first=0, credit=0):
        """Open an account with a first deposit; return False if the owner has one."""
        if owner in self.accounts:
            return False
        account = Account(owner, credit)
        if first > 0:
            account.deposit(first)
        self.accounts[owner] = account
        return True

    def move(self, sender, receiver, amount):
        """Move an amount for a fee; return whether it was moved; KeyError: unknown names."""
        source = self.accounts[sender]
        target = self.accounts[receiver]
        if source is target or not source.withdraw(amount, self.fee):
            return False
        target.deposit(amount)
        return True

    def balance(self, owner):
        """Return the balance of an owner."""
        return self.accounts[owner].balance

    def richest(self):
        """Return the owners by balance, the highest first, equal ones by name."""
        order = sorted(self.accounts.values(), key=lambda one: (-one.balance, one.owner))
        return [account.owner for account in order]

    def year(self, percent):
        """Book the interest of all accounts; return its sum."""
        return sum(account.interest(percent) for account in self.accounts.values())
