"""A loss and an optimizer of a user that do not keep their contracts."""


def raises(tokens, log_ratio):
    return tokens.logprops


def nothing(groups, *, lr):
    return None
