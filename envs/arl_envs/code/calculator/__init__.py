"""A small part of Python, computed without being executed: constants, loops, helper functions.

Assertions of data sets say with it what goes into a call and what is right. What the function
under test returns is not known then: it is `Open`, and so is all that depends on it. What is
asserted of it is kept as an expression, which `view_of` computes once the answer is there.

values       values, and what is open of them
lifting      expressions that give a value again
calls        calls of functions
expressions  expressions
statements   statements, and the whole: `Calculator`
allowed      functions, types and attributes that may be used
"""
