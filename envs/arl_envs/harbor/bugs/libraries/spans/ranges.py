"""Functions on lists of spans."""


def merge(spans):
    """Return the sorted spans that cover the same numbers, without overlaps or empty ones."""
    merged = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            last = merged.pop()
            merged.append((last[0], max(last[1], end)))
        else:
            merged.append((start, end))
    return merged


def length(spans):
    """Return how many different numbers the spans hold."""
    count = 0
    for start, end in merge(spans):
        count += end - start
    return count


def holds(spans, number):
    """Return whether a number is in one of the spans."""
    return any(start <= number < end for start, end in spans)


def gaps(spans, low, high):
    """Return the spans between low and high that are free."""
    free = []
    place = low
    for start, end in merge(spans):
        if start >= high:
            break
        if start > place:
            free.append((place, start))
        place = max(place, end)
    if place < high:
        free.append((place, high))
    return free


def common(first, second):
    """Return the numbers that both lists of spans hold, as merged spans."""
    found = []
    for start, end in merge(first):
        for other_start, other_end in merge(second):
            low = max(start, other_start)
            high = min(end, other_end)
            if low < high:
                found.append((low, high))
    return found
