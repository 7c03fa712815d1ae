"""The values of expressions."""

from .parser import parse


def value(tree, names):
    """Return the value of a tree; division is of whole numbers; raise KeyError for new names."""
    kind = tree[0]
    if kind == "number":
        return tree[1]
    if kind == "name":
        return names[tree[1]]
    left = value(tree[1], names)
    right = value(tree[2], names)
    if kind == "+":
        return left + right
    if kind == "-":
        return left - right
    if kind == "*":
        return left * right
    return left // right


def names_in(tree):
    """Return the names of a tree, each once, in the order of the text."""
    if tree[0] == "number":
        return []
    if tree[0] == "name":
        return [tree[1]]
    found = names_in(tree[1])
    for name in names_in(tree[2]):
        if name not in found:
            found.append(name)
    return found


def run(lines, names=None):
    """Run lines such as "a = 1 + 2" or "a * 3"; return the values of those without a name."""
    if names is None:
        names = {}
    results = []
    for line in lines:
        name, sign, rest = line.partition("=")
        if sign:
            names[name.strip()] = value(parse(rest), names)
        else:
            results.append(value(parse(line), names))
    return results
