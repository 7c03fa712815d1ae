"""Run-length coding."""


def runs(items):
    """Return [item, count] for each run of equal items."""
    found = []
    for item in items:
        if found and found[-1][0] == item:
            found[-1][1] += 1
        else:
            found.append([item, 1])
    return found


def pack(text, least=2):
    """Return a text in which runs of `least` letters or more are a count and a letter."""
    parts = []
    for letter, count in runs(text):
        if letter.isdigit():
            raise ValueError("digits cannot be packed")
        if count >= least:
            parts.append(f"{count}{letter}")
        else:
            parts.append(letter * count)
    return "".join(parts)


def unpack(text):
    """Return the text that was packed; raise ValueError if a count stands at the end."""
    parts = []
    digits = ""
    for letter in text:
        if letter.isdigit():
            digits += letter
        else:
            count = int(digits) if digits else 1
            parts.append(letter * count)
            digits = ""
    if digits:
        raise ValueError("a count at the end")
    return "".join(parts)


def longest(items):
    """Return the longest run's [item, count], the first of equal ones; [] for nothing."""
    best = []
    for item, count in runs(items):
        if not best or count > best[1]:
            best = [item, count]
    return best
