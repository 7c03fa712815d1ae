"""The imports that a solution that is a function may rely on, as on the sites it is made for."""

from __future__ import annotations

PRELUDE = """\
import bisect, collections, copy, datetime, functools, heapq, itertools, math, operator
import random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, combinations_with_replacement, count
from itertools import cycle, groupby, islice, pairwise, permutations, product, repeat, zip_longest
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, log, log2, pi, sqrt
from typing import *
sys.setrecursionlimit(50_000)
"""
"""The code before a solution: standard library only; names that the solution defines win."""
