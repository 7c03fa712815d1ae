"""Settings used: looked up, joined, compared, written."""


def lookup(sections, path, default=None):
    """Return the value at "section.key"; the default if there is none."""
    name, _, key = path.partition(".")
    section = sections.get(name)
    if section is None:
        return default
    if not key:
        return section
    return section.get(key, default)


def merged(base, changes):
    """Return the settings with changes; neither is changed itself."""
    result = {name: dict(section) for name, section in base.items()}
    for name, section in changes.items():
        known = result.setdefault(name, {})
        for key, value in section.items():
            if value is None:
                known.pop(key, None)
            else:
                known[key] = value
    return result


def difference(old, new):
    """Return the sorted paths that differ, marked with +, - or !."""
    marks = []
    for name in sorted(list(old) + [name for name in new if name not in old]):
        before = old.get(name, {})
        now = new.get(name, {})
        for key in sorted(list(before) + [key for key in now if key not in before]):
            if key not in before:
                marks.append(f"+{name}.{key}")
            elif key not in now:
                marks.append(f"-{name}.{key}")
            elif before[key] != now[key]:
                marks.append(f"!{name}.{key}")
    return marks


def said(value):
    """Return a value as it is written."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(said(part) for part in value)
    return str(value)


def written(sections):
    """Return the text of settings, sections and keys sorted, a blank line between sections."""
    blocks = []
    for name in sorted(sections):
        lines = [f"[{name}]"]
        for key in sorted(sections[name]):
            lines.append(f"{key} = {said(sections[name][key])}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
