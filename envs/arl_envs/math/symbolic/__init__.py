"""Answers in symbols: read here, compared here as far as that is cheap, else by algebra.

    notation.py     one spelling of what can be spelled in many ways
    tokens.py parser.py expression.py     an expression as a tree, as written; latex.py, back again
    reading.py relations.py shapes.py      an answer: number, set, interval, matrix, ...
    matrices.py sets.py names.py letters.py      kinds of answers with rules of their own
    asked.py spoken.py units.py      what a question asks for, and what stands behind numbers
    leftover.py     what is left to be worked out in it      numeric.py     its value in floats
    matching.py     shape by shape      literal.py     leaves, in microseconds
    algebra.py      leaves, by algebra, in a process that can be killed: numbers by exact.py,
                    which proves that two are one, and expressions with variables by math-verify

An answer counts if it says what the right answer says, in the same form: see `matching.Matcher`
and `leftover`. Only algebra.py imports sympy.
"""
