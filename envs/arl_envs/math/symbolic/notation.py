r"""One spelling for the many spellings of the same thing: spaces, \dfrac, \left, Unicode, $...$."""

from __future__ import annotations

import re
import unicodedata

from .expression import Unreadable
from .functions import FUNCTIONS

MAX_CHARS = 1000
MAX_SPELLED = 2 * MAX_CHARS
"""The most characters of a text in the one spelling: some signs are long commands there."""

_UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∕": "/",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ",
    "∈": r"\in ", "≡": r"\equiv ", "°": r"\degree ", "±": r"\pm ",
    "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "∅": r"\emptyset ",
    "ℝ": r"\reals ", "∖": r"\setminus ", "∩": r"\cap ", "∉": r"\notin ", "√": r"\sqrt ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "φ": r"\phi ", "€": r"\text{euro}", "£": r"\text{pound}", "¥": r"\text{yen}",
    "¢": r"\text{cent}", "₹": r"\text{rupee}", "₩": r"\text{won}", "’": "'", "∶": ":", "、": ",",
    "。": ".", "،": ",", "٫": ".", "٬": ",", "٪": "%", "⟨": r"\langle ", "⟩": r"\rangle ",
    "∧": r"\text{ and }", "∨": r"\text{ or }",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_OVERLINED = re.compile("((?:[0-9][\u0304\u0305])+)")
_INVISIBLE = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")

_GAP = r"(?:\\[,;:>! ]|\\thinspace|~|'| )"
_GROUPED = re.compile(rf"(?<![0-9.,^_])[0-9]{{1,3}}(?:{_GAP}{{1,2}}[0-9]{{3}})+(?![0-9]|\s*/)")
"""A pattern of digits in groups of three: 70 000. A space before a fraction is not such a gap:
it belongs to a mixed number."""

_FONTS = (
    "text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mathcal"
    "|mbox|hbox|rm|bf|boldsymbol|bm|emph|operatorname\\*?"
)
_SPELLINGS = {
    "tg": "tan", "ctg": "cot", "cotg": "cot", "ctan": "cot", "cosec": "csc", "cosech": "csch",
    "arctg": "arctan", "arcctg": "arccot", "arcosec": "arccsc", "arccosec": "arccsc",
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "acot": "arccot", "asec": "arcsec",
    "acsc": "arccsc", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh", "argsinh": "arcsinh",
}  # fmt: skip
"""Other spellings of functions."""
_NO_WORDS = FUNCTIONS - {"gcd", "lcm", "max", "min"} | {"sqrt", "pi", "infty"}
_NAMES = "|".join(sorted(_NO_WORDS, key=len, reverse=True))
_OTHERS = "|".join(sorted(_SPELLINGS, key=len, reverse=True))
_LONG_OTHERS = "|".join(name for name in _OTHERS.split("|") if len(name) > 2)
"""The spellings that are no product of two variables."""

_MOD = (
    r"(?:\\(?:[bp]?mod|pod)(?![A-Za-z])|\\text\{\s*mod(?:ulo)?\s*\}"
    r"|(?<![A-Za-z\\])mod(?:ulo)?(?![A-Za-z]))"
)
_MODULUS = r"\{[^{}]{1,60}\}|[0-9]+(?:\s*\^\s*(?:[0-9]|\{[0-9]+\}))?|[A-Za-z]"


def _function_name(match: re.Match[str]) -> str:
    return rf"\{_SPELLINGS[match['name']]} "


# The order matters. Each rewrite replaces many spellings by one.
_REWRITES = [
    (re.compile(pattern), to)
    for pattern, to in (
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\.?", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits)(?![A-Za-z])", ""),
        (r"(?<=[0-9])(?:\\[,!]|\{,\}\s?|\{\\,\}|,\\!)(?=[0-9]{3}(?![0-9]))", ","),
        (r"\\!|\\(?:(?:text)?color|phantom|hspace\*?)\s*\{[^{}]*\}", ""),
        (r"\\[,;:> ]|~|\\q?quad(?![A-Za-z])|\\thinspace(?![A-Za-z])", " "),
        (r"\{,\}", ","),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\dbinom(?![A-Za-z])|\\tbinom(?![A-Za-z])", r"\\binom"),
        (rf"\\(?:{_FONTS})\s*\{{", r"\\text{"),
        (r"\\text\{\s*(-?[0-9][0-9.,]*)\s*\}", r"\1"),
        (r"\\overset\s*\{\s*(?:\.|\\cdot\s*|\\bullet\s*)\}\s*", r"\\dot"),
        (
            r"(?<=\.)([0-9]*)\\(?:bar|overbar|overline)\s*(?:\{([0-9]+)\}|([0-9]))",
            r"\1\\overline{\2\3}",
        ),
        (
            r"(?<=\.)([0-9]*)\\dot\s*(?:\{([0-9]+)\}|([0-9]))"
            r"(?:([0-9]*)\\dot\s*(?:\{([0-9])\}|([0-9])))?(?![0-9])",
            r"\1\\overline{\2\3\4\5\6}",
        ),
        (r"(?<=\.)\(([0-9]+)\)", r"\\overline{\1}"),
        (r"\\(?:overline|overrightarrow|widehat)\s*\{\s*([A-Z]{2,3})\s*\}", r"\1"),
        (
            r",?\s*(?:\\text\{\s*(?:where|for)\s*\})?\s*[kmn]\s*\\in\s*\\mathbb\s*\{?\s*[ZN]\s*\}?$",
            "",
        ),
        (r"\\(?:mathbb|Bbb|mathds)\s*(?:\{\s*R\s*\}|R(?![A-Za-z]))|\\R(?![A-Za-z])", r"\\reals "),
        (rf"\\text\{{\s*({_NAMES})\s*\}}", r"\\\1 "),
        (rf"\\text\{{\s*(?P<name>{_OTHERS})\s*\}}", _function_name),
        (rf"\\(?P<name>{_OTHERS})(?![A-Za-z])", _function_name),
        (rf"(?<![\\A-Za-z])(?P<name>{_LONG_OTHERS})(?![A-Za-z])", _function_name),
        (r"\\(?:var)?nothing(?![A-Za-z])", r"\\emptyset "),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|\\text\{\s*degrees?\s*\}", r"\\degree "),
        (r"\\lbrace(?![A-Za-z])|\\lbrack(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])|\\rbrack(?![A-Za-z])", r"\\}"),
        (r"\\leqslant(?![A-Za-z])|\\le(?![A-Za-z])|<=", r"\\leq "),
        (r"\\geqslant(?![A-Za-z])|\\ge(?![A-Za-z])|>=", r"\\geq "),
        (r"\\ne(?![A-Za-z])|!=", r"\\neq "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varphi(?![A-Za-z])", r"\\phi "),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\cdotp(?![A-Za-z])|\\ast(?![A-Za-z])", r"\\cdot "),
        (r"\\[lr][vV]ert(?![A-Za-z])|\\[lr]?vert(?![A-Za-z])|\\mid(?![A-Za-z])", "|"),
        (r"\\(?:colon)(?![A-Za-z])", ":"),
        (r"\\not\s*=", r"\\neq "),
        (r"\\not\s*\\in(?![A-Za-z])", r"\\notin "),
        # One notation of a modulus: at the end, or before the next comma.
        (r"\\text\{\s*\(?\s*mod(?:ulo)?\s+([0-9]+|[A-Za-z])\s*\)?\s*\}", r"\\pmod{\1}"),
        (rf"\(\s*{_MOD}\s*({_MODULUS})\s*\)", r"\\pmod{\1}"),
        (rf"{_MOD}\s*({_MODULUS})", r"\\pmod{\1}"),
        (r"\\pmod\{\s*\{([^{}]*)\}\s*\}", r"\\pmod{\1}"),
        (r"\\%", "%"),
        (r"\*\*", "^"),
        (r"([0-9])[ ]+([0-9]+)[ ]*/[ ]*([0-9]+)(?![0-9])", r"\1\\frac{\2}{\3}"),
        (rf"(?<![\\A-Za-z])({_NAMES})(?![A-Za-z])", r"\\\1 "),
    )
]


def plain(text: str) -> str:
    r"""Return `text` without delimiters, spacing commands and a final period, which do not matter.

    Raises:
        Unreadable: `text` is too long, or its braces do not fit together.
    """
    text = text.strip()
    if len(text) > MAX_CHARS:
        raise Unreadable(f"longer than {MAX_CHARS} characters")
    text = _trimmed(text)
    text = re.sub(r"\\\\(?:\[[0-9.]+[a-z]{2}\])?", r"\\newline ", text)
    text = spelled(_undelimited(_unmarked(text)))
    if len(text) > MAX_SPELLED:
        raise Unreadable(f"longer than {MAX_SPELLED} characters when spelled out")
    if not balanced(text):
        raise Unreadable("braces that do not fit together")
    text = re.sub(r"(?<![.,;])[.,;]$", "", text).strip()
    return _unwrapped(text)


def _trimmed(text: str) -> str:
    r"""Return `text` without spaces at either end, in any notation: `\ `, `\\`, `\quad`."""
    while (shorter := _EDGE.sub("", text).rstrip("\\")) != text:
        text = shorter
    return text


def spelled(text: str) -> str:
    """Return any `text`, also a question, in the one spelling."""
    text = _GROUPED.sub(
        lambda match: re.sub(f"{_GAP}+", ",", match[0]), _single_spaced(_latin(text))
    )
    for pattern, to in _REWRITES:
        # A rewrite may leave spaces side by side, and patterns are slow on runs of spaces.
        text = _single_spaced(pattern.sub(to, text))
    return text


def _latin(text: str) -> str:
    """Return `text` with digits, letters and signs of other scripts and widths in ASCII."""
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", text)
    text = _RAISED.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _OVERLINED.sub(lambda match: rf"\overline{{{match[0][::2]}}}", text)
    text = re.sub("([0-9])\u0307", r"\\dot{\1}", text)
    text = re.sub(r"\d+", _latin_digits, text)
    return "".join(map(_latin_sign, text))


def _latin_digits(match: re.Match[str]) -> str:
    """Return digits of one script in ASCII. Digits of several scripts are no plausible number."""
    zeros = {ord(digit) - unicodedata.decimal(digit) for digit in match[0]}
    return str(int(match[0])).zfill(len(match[0])) if len(zeros) == 1 else match[0]


def _latin_sign(sign: str) -> str:
    if sign.isascii():
        return sign
    if sign in _UNICODE:
        return _UNICODE[sign]
    above, _, below = unicodedata.normalize("NFKC", sign).partition("⁄")
    if below.isdigit():
        return rf"\frac{{{above}}}{{{below}}}"
    wide = unicodedata.east_asian_width(sign) == "F" and not sign.isdecimal()
    return above if above.isascii() and wide else sign


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


def _unmarked(text: str) -> str:
    """Return `text` without Markdown emphasis around all of it."""
    for mark in ("**", "__", "`"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    return text


def _undelimited(text: str) -> str:
    r"""Return `text` without `$...$`, `\(...\)` and `\[...\]`; a `$` before a number is money."""
    text = re.sub(r"\\[()]|\\\[|\\\](?!\[)", " ", text)
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:
        return re.sub(r"(?<!\\)\$", " ", text)
    return re.sub(r"(?<!\\)\$(?=\s*[0-9.])", r"\\$", text)


def _unwrapped(text: str) -> str:
    """Return `text` without braces or a box around all of it."""
    for _ in range(_MAX_WRAPS):
        for opening in ("{", r"\boxed{", r"\fbox{"):
            if text.startswith(opening) and closing(text, len(opening) - 1) == len(text) - 1:
                text = text[len(opening) : -1].strip()
                break
        else:
            break
    return text


_MAX_WRAPS = 4
_EDGE_SPACE = r"(?:\s|~|\\[,;:>! ]|\\\\|\\(?:q?quad|newline|hfill|par|thinspace)(?![A-Za-z]))"
_EDGE = re.compile(rf"^{_EDGE_SPACE}|{_EDGE_SPACE}$")
_PAIRS = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\langle": r"\rangle"}
_BRACKET = re.compile(r"\\[{}]|\\[lr]angle(?![A-Za-z])|\\.|[][(){}]", re.DOTALL)


def balanced(text: str) -> bool:
    """Return whether every brace is closed; brackets and parentheses may be those of intervals."""
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth < 0:
            return False
    return depth == 0


def closing(text: str, at: int) -> int:
    """Return the index of the brace that closes the one at `at`; -1 if none does."""
    depth = 0
    for match in _BRACKET.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return -1


def split_top(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Return the parts of `text` between separators outside of all brackets, and the separators.

    Any bracket may close any other one: half-open intervals have two kinds.
    """
    parts, found, depth, start, at = list[str](), list[str](), 0, 0, 0
    while at < len(text):
        bracket = _BRACKET.match(text, at)
        token = separator.match(text, at) if depth == 0 else None
        if token is not None and token.end() > at:
            parts.append(text[start:at].strip())
            found.append(token[0].strip())
            start = at = token.end()
        elif bracket is not None:
            opens, closes = bracket[0] in _PAIRS, bracket[0] in _PAIRS.values()
            depth = max(0, depth + opens - closes)
            at = bracket.end()
        else:
            at += 1
    parts.append(text[start:].strip())
    return parts, found
