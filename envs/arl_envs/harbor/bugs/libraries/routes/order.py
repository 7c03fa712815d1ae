"""Work in the order of what depends on what."""


def in_order(needs):
    """Return names such that each follows what it needs, by name where free; ValueError: a ring."""
    left = {}
    for name, needed in needs.items():
        left.setdefault(name, [])
        for other in needed:
            left.setdefault(other, [])
            left[name].append(other)
    order = []
    while left:
        ready = [name for name in sorted(left) if all(need in order for need in left[name])]
        if not ready:
            raise ValueError("a ring")
        order.append(ready[0])
        del left[ready[0]]
    return order


def levels(needs):
    """Return the depth of each name: 0 if it needs nothing, else one more than what it needs."""
    depth = {}
    for name in in_order(needs):
        below = [depth[other] for other in needs.get(name, [])]
        depth[name] = max(below) + 1 if below else 0
    return depth


def all_needs(needs, name, found=None):
    """Return the sorted names that a name needs, at any depth."""
    if found is None:
        found = []
    for other in needs.get(name, []):
        if other not in found:
            found.append(other)
            all_needs(needs, other, found)
    return sorted(found)
