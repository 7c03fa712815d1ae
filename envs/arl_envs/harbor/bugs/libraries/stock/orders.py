"""Orders: lists of (name, count)."""


def price(order, prices, rebate_from=100, rebate=10):
    """Return what an order costs; from `rebate_from` on, `rebate` percent less, rounded down."""
    total = 0
    for name, count in order:
        total += prices[name] * count
    if total >= rebate_from:
        total -= total * rebate // 100
    return total


def joined(orders, start=None):
    """Return one order for many, names in the order of their first, added to those of `start`."""
    if start is None:
        start = []
    for order in orders:
        for name, count in order:
            for place, known in enumerate(start):
                if known[0] == name:
                    start[place] = (name, known[1] + count)
                    break
            else:
                start.append((name, count))
    return start


def boxes(order, room):
    """Return the order in boxes of at most `room` things each, filled in turn."""
    packed = []
    box = []
    left = room
    for name, count in order:
        while count > 0:
            part = min(count, left)
            box.append((name, part))
            count -= part
            left -= part
            if left == 0:
                packed.append(box)
                box = []
                left = room
    if box:
        packed.append(box)
    return packed
