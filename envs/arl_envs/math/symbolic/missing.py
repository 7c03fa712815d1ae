"""Right answers that are missing: the words with which a data set marks a row without an answer.

NuminaMath-1.5 has "proof" for every problem that asks for a proof, and "notfound" where its authors
found no answer: 143,300 of its 896,215 rows. A reply with these words would get a reward.
"""

from __future__ import annotations

import re

from .units import mentioned_in

_ALWAYS = """
    proof proofs prove proving proofneeded proofrequired proofproblem proofquestion prooftask
    toprove seeproof proofbelow proofabove proofgiven proofomitted proofinsolution qed
    asshown asabove asbelow seeabove seebelow seesolution seesolutions seethesolution seeanswer
    seeexplanation seefigure seeimage seepicture seegraph seediagram seework seetext seeattached
    seedetails seenotes solutionbelow solutionabove seesolutionbelow seesolutionabove
    solutionomitted answeromitted omitted refertosolution refertothesolution refertoproof
    notfound answernotfound solutionnotfound noanswerfound nosolutionfound notgiven notprovided
    answernotprovided answernotgiven noanswerprovided noanswergiven nosolutionprovided
    nosolutiongiven notspecified unspecified notavailable answernotavailable unavailable
    notapplicable inapplicable noanswer noanswers unanswered unknownanswer missing missinganswer
    answermissing nan nil tbd tba todo fixme placeholder notext
    answer theanswer finalanswer thefinalanswer youranswer answerhere insertanswer correctanswer
    solution thesolution answersvary answersmayvary answerswillvary answersmaydiffer answervaries
    varies variousanswers openended multipleanswers lefttothereader lefttoreader lefttothestudent
    exerciseforthereader notananswer notanumber nofinalanswer nonumericalanswer nonumericanswer
    略 答案略 解略 证明略 證明略 证明 證明 证明见上 见答案
    证明题 證明題 见解析 見解析 见证明 无答案 無答案 暂无 暫無
    доказательство нетответа beweis siehelösung demostración preuve démonstration
"""
"""The words that are never an answer, as letters in lower case."""
_UNLESS_OFFERED = """
    none null unknown empty blank void invalid proven proved verified shown trivial
    error image picture figure diagram graph demostrado bewiesen démontré
"""
"""The words that may be answers if the question has them ("If there is none, write none")."""
_ARE_NONE, _MAY_BE_NONE = frozenset(_ALWAYS.split()), frozenset(_UNLESS_OFFERED.split())
_ELSEWHERE = re.compile(
    r"(?:please )?(?:(?:see|refer to|look (?:at|in)|consult|check|(?:given|shown|found) (?:in|on))"
    r"|(?:the )?(?:solution|answer)s? (?:(?:is|are) )?(?:given |found )?(?:in|on|at))"
    r" (?:the |our |attached |following )*(?:solution|answer|explanation|figure|image|picture|"
    r"graph|diagram|table|attachment|text|proof|page|appendix|work|details|link|video|pdf|book|note|key)s?"
    r"\b.*",
    re.IGNORECASE | re.DOTALL,
)
"""A pattern of references to where the answer is."""
_UNSURE = re.compile(
    r"(?:i|we) (?:don['’]t|do not|cannot|can['’]t) (?:know|answer|solve|tell)\b.*|"
    r"(?:still )?to be (?:determined|announced|done|added|completed|filled)\b.*|"
    r"(?:coming soon|no idea|work in progress)\W*",
    re.IGNORECASE,
)
_COMMANDS = re.compile(r"\\[A-Za-z]+\*?")
_OF_PROOFS = re.compile(r"(?<![A-Za-z])(?:proofs?|prove[dns]?|proving|Q\.?E\.?D)(?![A-Za-z])", re.I)
_NOTE = re.compile(r"\([^()]*\)[\s.]*$")


def says_nothing(answer: str, question: str = "") -> bool:
    r"""Return whether `answer` means that there is no answer: "proof", "N/A", "see solution".

    `\text{none}` is the empty set, and so is "none" if the question offers it; a bare "none" is an
    empty field. "n/a" is a quotient if the question has these variables.
    """
    plain = _COMMANDS.sub(" ", answer)
    words = " ".join(re.sub(r"[{}$*~]+", " ", plain).split())
    if _ELSEWHERE.fullmatch(words) or _UNSURE.fullmatch(words):
        return True
    if _OF_PROOFS.search(plain):
        return not (re.search("[0-9]", plain) and "proof" in question.casefold())  # 80 proof
    if re.search(r"[0-9=<>+^|]", plain):
        return False
    words = _letters(plain)
    if not words:
        return not _COMMANDS.search(answer) and not re.search(r"[^\W_]", answer)
    if words == "na":
        return not {"n", "a"} <= {name.lower() for name in mentioned_in(question).variables}
    if words in _ARE_NONE or _letters(_NOTE.sub("", plain)) in _ARE_NONE:
        return True
    if words in _MAY_BE_NONE:
        offered = re.search(rf"\b{words}\b", question.casefold()) is not None
        return not offered and not (words == "none" and "\\text" in answer)
    return False


def _letters(text: str) -> str:
    return re.sub(r"[\W\d_]", "", text.casefold())
