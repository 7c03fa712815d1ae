"""Texts to settings: a dictionary of sections, each a dictionary of values."""


def value_of(text):
    """Return a value: a number, yes or no as a bool, a list with commas, or the text."""
    text = text.strip()
    if text.lstrip("-").isdigit():
        return int(text)
    if text in ("yes", "no"):
        return text == "yes"
    if len(text) >= 2 and text[0] == '"' and text[-1] == '"':
        return text[1:-1]
    if "," in text:
        return [value_of(part) for part in text.split(",")]
    return text


def parse(text, comment="#"):
    """Return the settings of a text; raise ValueError for a line without a key or a section."""
    sections = {}
    current = None
    for line in text.split("\n"):
        line = line.partition(comment)[0].strip()
        if not line:
            continue
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1].strip(), {})
            continue
        key, sign, value = line.partition("=")
        if not sign or not key.strip() or current is None:
            raise ValueError(line)
        current[key.strip()] = value_of(value)
    return sections
