"""Symbolic answers: read here, compared here as far as that is cheap, else by algebra.

    notation.py     one spelling for the many spellings of the same thing
    tokens.py parser.py expression.py     an expression as a tree, as written
    reading.py relations.py answer_types.py      an answer: number, set, interval, matrix, ...
    missing.py      words for a missing answer    functions.py      functions by other names
    matrices.py sets.py names.py letters.py congruences.py      answers with rules of their own
    requested_units.py units.py      the unit that a question asks for, and words after numbers
    remaining_work.py     the work that is left in it      numeric.py     its value in floats
    matching.py     part by part      literal.py     leaves, in microseconds
    algebra.py      leaves, by algebra, in a process that can be killed: numbers by exact.py,
                    which proves that two are equal, and expressions with variables by math-verify

An answer counts if it equals the right answer and has the same form: see `matching.Matcher`
and `remaining_work`. Only algebra.py imports sympy.
"""
