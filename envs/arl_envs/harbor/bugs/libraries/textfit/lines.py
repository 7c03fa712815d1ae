"""Words in lines of a limited width."""


def wrap(text, width):
    """Return the words of a text in lines of at most `width`; a longer word has its own line."""
    lines = []
    line = ""
    for word in text.split():
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line += " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines


def justify(line, width):
    """Spread the words of a line over `width`; the first gaps are the wide ones."""
    words = line.split()
    if len(words) < 2:
        return line.ljust(width)
    spaces = width - sum(len(word) for word in words)
    each, more = divmod(spaces, len(words) - 1)
    text = words[0]
    for number, word in enumerate(words[1:]):
        text += " " * (each + 1 if number < more else each)
        text += word
    return text


def shorten(text, width, mark=".."):
    """Return a text of at most `width`, with a mark in place of what is cut off."""
    if len(text) <= width:
        return text
    if width <= len(mark):
        return mark[:width]
    return text[: width - len(mark)].rstrip() + mark


def indent(lines, depth, first=None):
    """Return lines with blanks before them; the first line may have its own depth."""
    if first is None:
        first = depth
    done = []
    for number, line in enumerate(lines):
        blanks = first if number == 0 else depth
        done.append(" " * blanks + line)
    return done
