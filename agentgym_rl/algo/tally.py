"""Metrics as sums and counts, so that merging ranks or micro-batches is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Tally:
    """Collects means (total and count), counts and maxima by metric name."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[float, float]] = {}
        self._counts: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def mean(self, name: str, total: float, count: float) -> None:
        """Add `count` observations that sum to `total`."""
        before = self._means.get(name, (0.0, 0.0))
        self._means[name] = (before[0] + float(total), before[1] + float(count))

    def count(self, name: str, number: float) -> None:
        """Add to a plain sum."""
        self._counts[name] = self._counts.get(name, 0.0) + float(number)

    def maximum(self, name: str, value: float) -> None:
        """Keep the largest value seen."""
        self._maxima[name] = max(self._maxima.get(name, float("-inf")), float(value))

    def parts(self) -> tuple[Mapping[str, tuple[float, float]], ...]:
        """Plain dictionaries for the way to another rank; see `merged`."""
        wide = [{k: (v, 0.0) for k, v in d.items()} for d in (self._counts, self._maxima)]
        return (dict(self._means), *wide)

    @classmethod
    def merged(cls, ranks: Sequence[tuple[Mapping[str, tuple[float, float]], ...]]) -> Tally:
        """The tally of all ranks' `parts`."""
        tally = cls()
        for means, counts, maxima in ranks:
            for name, (total, count) in means.items():
                tally.mean(name, total, count)
            for name, (number, _) in counts.items():
                tally.count(name, number)
            for name, (value, _) in maxima.items():
                tally.maximum(name, value)
        return tally

    def values(self) -> dict[str, float]:
        """Name to number; means of nothing are left out."""
        means = {name: total / count for name, (total, count) in self._means.items() if count}
        return {**means, **self._counts, **self._maxima}
