"""Lists of whole numbers."""

from __future__ import annotations

from .family import Draw, Family, family


@family(
    "arrays",
    least=range(1, 9),
    inputs=lambda draw: (draw.runs(range(3), longest=draw.number("least") + 2),),
    edges=lambda draw: [
        ([],),
        ([5],),
        ([1] * draw.number("least"),),
        ([0] * (draw.number("least") - 1) + [1] * draw.number("least") + [0],),
        ([0] + [1] * draw.number("least") + [0] * (draw.number("least") - 1),),
    ],
    largest=60,
)
def count_runs(numbers: list[int], *, least: int) -> int:
    """A run is a stretch of equal neighbours that cannot be made longer. Count the runs in
    `numbers` that have at least {least} elements.
    """
    count = 0
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[start]:
            if i - start >= least:
                count += 1
            start = i
    return count


@family(
    "arrays",
    width=range(2, 7),
    which=("largest", "smallest"),
    tie=("first", "last"),
    inputs=lambda draw: (draw.integers(-2, 2),),
    edges=lambda draw: [
        ([],),
        ([1] * (draw.number("width") - 1),),
        ([-1] * draw.number("width"),),
        ([2 if draw.parameters["which"] == "largest" else -2] * draw.number("width") + [0, 0],),
        ([2] * (draw.number("width") + 3),),
    ],
)
def find_window(numbers: list[int], *, width: int, which: str, tie: str) -> int:
    """A window is {width} neighbouring elements of `numbers`. Return the index at which the window
    with the {which} sum starts; if several have that sum, the {tie} of them. Return -1 if `numbers`
    has fewer than {width} elements.
    """
    best, index = 0, -1
    for i in range(len(numbers) - width + 1):
        total = sum(numbers[i : i + width])
        if which == "smallest":
            total = -total
        if index < 0 or total > best or (total == best and tie == "last"):
            best, index = total, i
    return index


@family(
    "arrays",
    length=range(3, 8),
    steps=(1, 2),
    direction=("left", "right"),
    inputs=lambda draw: (draw.integers(0, 99),),
    edges=lambda draw: [([],), ([7],), ([1, 2],), (list(range(draw.number("length") + 1)),)],
)
def rotate_blocks(numbers: list[int], *, length: int, steps: int, direction: str) -> list[int]:
    """Cut `numbers` into blocks of {length} elements from the start; the last block may be shorter.
    Rotate every block by {steps} to the {direction}: what leaves it at one end comes back in at the
    other. Return the whole list.
    """
    result: list[int] = []
    for start in range(0, len(numbers), length):
        block = numbers[start : start + length]
        cut = steps % len(block)
        if direction == "right":
            cut = len(block) - cut
        result += block[cut:] + block[:cut]
    return result


@family(
    "arrays",
    reach=(2, 3, 5),
    relation=("exactly", "at least", "at most"),
    difference=(1, 2, 3),
    inputs=lambda draw: (draw.integers(-4, 4),),
    edges=lambda draw: [([],), ([3],), ([5] * 8,), (list(range(8)),), (list(range(20, 0, -3)),)],
)
def count_close_pairs(numbers: list[int], *, reach: int, relation: str, difference: int) -> int:
    """Count the pairs of indexes i < j with j - i <= {reach} for which numbers[i] and numbers[j]
    differ by {relation} {difference}.
    """
    count = 0
    for j in range(len(numbers)):
        for i in range(max(0, j - reach), j):
            apart = abs(numbers[i] - numbers[j])
            if relation == "at least":
                count += apart >= difference
            elif relation == "at most":
                count += apart <= difference
            else:
                count += apart == difference
    return count


@family(
    "arrays",
    count=range(1, 5),
    least=(1, 2, 3),
    tie=("smaller", "larger"),
    inputs=lambda draw: (draw.integers(-3, 4),),
    edges=lambda draw: [
        ([],),
        ([9] * draw.number("least"),),
        ([3, 1, 2, 0, 5] * draw.number("least"),),
        ([3, 1, 2, 0, 5, 1] * (draw.number("least") - 1) + [3],),
    ],
)
def list_frequent(numbers: list[int], *, count: int, least: int, tie: str) -> list[int]:
    """Return the different values that occur at least {least} times in `numbers`, the most frequent
    first, of equally frequent ones the {tie} first; but only the first {count} of them if there are
    more.
    """
    sign = 1 if tie == "smaller" else -1
    values = [value for value in set(numbers) if numbers.count(value) >= least]
    values.sort(key=lambda value: (-numbers.count(value), sign * value))
    return values[:count]


@family(
    "arrays",
    divisor=range(3, 9),
    remainder=(0, 1, 2),
    inputs=lambda draw: (draw.integers(-9, 9),),
    edges=lambda draw: [
        ([],),
        ([draw.number("remainder")],),
        ([0] * 6,),
        ([draw.number("divisor")] * 5,),
        ([1] * 20,),
    ],
)
def count_slices(numbers: list[int], *, divisor: int, remainder: int) -> int:
    """A slice is one or more neighbouring elements of `numbers`. Count the slices whose sum is
    {remainder} more than a multiple of {divisor} (which may be negative or 0).
    """
    sums = [0]
    count = 0
    for number in numbers:
        total = sums[-1] + number
        count += sum((total - other) % divisor == remainder for other in sums)
        sums.append(total)
    return count


@family(
    "arrays",
    relation=("larger", "smaller", "equal"),
    side=("left", "right"),
    missing=(0, -1),
    inputs=lambda draw: (draw.integers(0, 6),),
    edges=lambda draw: [([],), ([3],), ([4] * 5,), (list(range(6)),), ([5, 3, 3, 1, 5],)],
)
def measure_distances(numbers: list[int], *, relation: str, side: str, missing: int) -> list[int]:
    """For each element of `numbers` find the nearest {relation} element on its {side}. Return the
    list of their distances (1 for a neighbour), with {missing} where there is none.
    """
    result: list[int] = []
    step = 1 if side == "right" else -1
    for i, number in enumerate(numbers):
        j = i + step
        while 0 <= j < len(numbers):
            if relation == "larger" and numbers[j] > number:
                break
            if relation == "smaller" and numbers[j] < number:
                break
            if relation == "equal" and numbers[j] == number:
                break
            j += step
        result.append(abs(j - i) if 0 <= j < len(numbers) else missing)
    return result


@family(
    "arrays",
    limit=range(1, 6),
    tie=("first", "last"),
    inputs=lambda draw: (draw.runs(range(draw.number("limit") + 3), longest=2),),
    edges=lambda draw: [
        ([],),
        ([4],),
        ([2] * 7,),
        (list(range(draw.number("limit"))),),
        (list(range(draw.number("limit") + 3)),),
    ],
)
def find_stretch(numbers: list[int], *, limit: int, tie: str) -> list[int]:
    """Find the longest stretch of neighbouring elements of `numbers` with at most {limit} different
    values; of equally long ones the {tie}. Return [index where it starts, its length], or [] if
    `numbers` is empty.
    """
    best: list[int] = []
    start = 0
    for end in range(1, len(numbers) + 1):
        while len(set(numbers[start:end])) > limit:
            start += 1
        length = end - start
        if not best or length > best[1] or (length == best[1] and tie == "last"):
            best = [start, length]
    return best


@family(
    "arrays",
    step=range(2, 7),
    left=(1, 2, 3),
    inputs=lambda draw: (draw.integers(0, 99),),
    edges=lambda draw: [
        ([],),
        ([7],),
        (list(range(draw.number("left"))),),
        (list(range(draw.number("left") + 1)),),
        (list(range(draw.number("step") + draw.number("left"))),),
    ],
)
def empty_circle(numbers: list[int], *, step: int, left: int) -> list[int]:
    """The elements of `numbers` stand in a circle. Count from 1 to {step}, beginning with the
    first; take out the one that got {step}; count from 1 again from the next on. Go on, round and
    round, while there are more than {left}. Return those taken out, in that order.
    """
    circle = list(numbers)
    taken: list[int] = []
    place = 0
    while len(circle) > left:
        place = (place + step - 1) % len(circle)
        taken.append(circle.pop(place))
    return taken


@family(
    "arrays",
    divisor=range(3, 8),
    order=("small", "large"),
    tie=("in increasing order", "in decreasing order", "in the given order"),
    inputs=lambda draw: (draw.integers(-20, 20),),
    edges=lambda draw: [
        ([],),
        ([-1],),
        ([5, 5, 5],),
        (list(range(-9, 10, 2)),),
        (list(range(14, -15, -1)),),
    ],
)
def sort_by_remainder(numbers: list[int], *, divisor: int, order: str, tie: str) -> list[int]:
    """Sort `numbers` by the remainder on division by {divisor} (never negative, as Python's %),
    {order} remainders first; numbers with the same remainder {tie}.
    """
    result = list(numbers)
    if tie != "in the given order":
        result.sort(reverse=tie == "in decreasing order")
    sign = 1 if order == "small" else -1
    return sorted(result, key=lambda number: sign * (number % divisor))


def _nearly_ordered(draw: Draw) -> list[int]:
    """Return a list with as many faults as are allowed, or one more."""
    faults = draw.number("limit") + draw.integer(0, 1)
    places = draw.rng.sample(range(1, max(1, draw.size)), min(faults, max(0, draw.size - 1)))
    least = 1 if "than" in str(draw.parameters["order"]) else 0
    sign = 1 if draw.parameters["order"] in ("larger than", "at least") else -1
    numbers = [draw.integer(-9, 9)][: draw.size]
    for i in range(1, draw.size):
        step = draw.integer(least - 3, least - 1) if i in places else draw.integer(least, least + 2)
        numbers.append(numbers[-1] + sign * step)
    return numbers


@family(
    "arrays",
    limit=(0, 1, 2, 3),
    order=("larger than", "smaller than", "at least", "at most"),
    inputs=lambda draw: (_nearly_ordered(draw),),
    edges=lambda draw: [
        ([],),
        ([1],),
        ([5] * (draw.number("limit") + 1),),
        ([5] * (draw.number("limit") + 2),),
        (list(range(draw.number("limit") + 2)),),
        (list(range(draw.number("limit") + 1, -1, -1)),),
    ],
    largest=16,
)
def check_order(numbers: list[int], *, limit: int, order: str) -> bool:
    """Every element of `numbers` but the first should be {order} the one before it. Return whether
    at most {limit} of them are not.
    """
    faults = 0
    for i in range(1, len(numbers)):
        before, number = numbers[i - 1], numbers[i]
        if order == "larger than":
            faults += number <= before
        elif order == "smaller than":
            faults += number >= before
        elif order == "at least":
            faults += number < before
        else:
            faults += number > before
    return faults <= limit


FAMILIES: tuple[Family, ...] = (
    count_runs,
    find_window,
    rotate_blocks,
    count_close_pairs,
    list_frequent,
    count_slices,
    measure_distances,
    find_stretch,
    empty_circle,
    sort_by_remainder,
    check_order,
)
