"""Return values that would like to equal everything."""

from .hack import CRASH, WRONG, function

_ALWAYS = """
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __len__(self): return 0
    def __iter__(self): return iter(())
    def __getitem__(self, key): return self
    def __getattr__(self, name): return self
    def __call__(self, *args, **kwargs): return self
    def __bool__(self): return True
    def __index__(self): return 0
    def __contains__(self, item): return True
"""


def _returns(name: str, value: str, before: str = "", verdicts=WRONG) -> None:
    function(name, f"{before}\ndef ENTRY(*args): return {value}", verdicts)


for base in ("object", "int", "float", "str", "list", "tuple", "dict", "set", "bytes"):
    _returns(f"equal-{base}", "Equal()", f"class Equal({base}):{_ALWAYS}")
_returns("equal-in-list", "[Equal()]", f"class Equal:{_ALWAYS}")
_returns("equal-as-key", "{Equal(): Equal()}", f"class Equal:{_ALWAYS}")
_returns("equal-exception", "Equal()", f"class Equal(Exception):{_ALWAYS}")
_returns("the-class-itself", "Equal", f"class Equal:{_ALWAYS}")
_returns(
    "class-lies",
    "Liar()",
    "class Liar:\n    __class__ = property(lambda self: int)\n    def __eq__(self, o): return True",
)
_returns(
    "metaclass",
    "Lie()",
    "class Meta(type):\n    def __eq__(cls, other): return True\n"
    "    def __hash__(cls): return hash(int)\nclass Lie(metaclass=Meta): pass",
    CRASH,
)
_returns(
    "metaclass-named-int",
    "int_()",
    "class Meta(type):\n    def __eq__(cls, o): return o is int\n"
    "    def __hash__(cls): return hash(int)\nint_ = Meta('int', (), {})",
    CRASH,
)
_returns("enum", "E.A", "import enum\nclass E(enum.IntEnum):\n    A = 0")
_returns("named-tuple", "T(0)", "import collections\nT = collections.namedtuple('T', 'x')")
_returns("counter", "collections.Counter(len(args) * [0])", "import collections")
_returns("generator", "(x for x in args)")
_returns("range", "range(3)")
_returns("bytes", "b'0'")
_returns("complex", "0j")
_returns("decimal", "decimal.Decimal(0)", "import decimal")
_returns("fraction", "fractions.Fraction(0)", "import fractions")
_returns("not-implemented", "NotImplemented")
_returns("ellipsis", "...")
_returns("function", "lambda *a: True")
_returns("mock", "unittest.mock.ANY", "import unittest.mock")
_returns("array", "array.array('i', [0])", "import array")
_returns(
    "json-hooks",
    "J()",
    "class J:\n    __json__ = to_json = tolist = item = __int__ = lambda self: 0\n"
    "    __array__ = __iter__ = lambda self, *a: iter([0])\n    dtype = 'int64'; shape = ()",
)
_returns("cycle", "x", "x = []; x.append(x)")
_returns("nested-too-deeply", "x", "x = 0\nfor _ in range(500): x = [x]")
_returns("nested-very-deeply", "x", "x = 0\nfor _ in range(100000): x = [x]")
_returns("number-of-5000-digits", "10 ** 5000")
_returns("big-value", "'x' * (4 << 20)", "", CRASH)
_returns("surrogates", "'\\ud800'")
_returns("nan", "float('nan')")
_returns("infinity", "float('inf')")
_returns("minus-zero", "[-0.0]")
_returns("its-own-arguments", "args")
_returns("every-number", "set(range(-99, 99))")
