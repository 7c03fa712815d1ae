"""The words of an expression."""

SIGNS = "+-*/()="


def tokenize(text):
    """Return (kind, text) pairs: kinds are number, name and sign; raise ValueError for others."""
    tokens = []
    place = 0
    while place < len(text):
        letter = text[place]
        if letter == " ":
            place += 1
        elif letter.isdigit():
            end = place
            while end < len(text) and text[end].isdigit():
                end += 1
            tokens.append(("number", text[place:end]))
            place = end
        elif letter.isalpha() or letter == "_":
            end = place
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            tokens.append(("name", text[place:end]))
            place = end
        elif letter in SIGNS:
            tokens.append(("sign", letter))
            place += 1
        else:
            raise ValueError(f"place {place}: {letter}")
    return tokens
