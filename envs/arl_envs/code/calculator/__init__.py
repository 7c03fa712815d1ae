"""A small part of Python, computed without being executed: constants, loops, helper functions.

Assertions of data sets use it for the arguments of a call and for the right value. The result of
the function under test is not known then: it is `Open`, and so is all that depends on it. An
assertion about it is kept as an expression, which `view_of` computes once the answer is known.

values       values, and those that are open
lifting      expressions that recreate a value
calls        calls of functions
expressions  expressions
statements   statements, and the complete class: `Calculator`
allowed      functions, types and attributes that may be used
"""
