from tests.kit.groups import group, row

__all__ = ["group", "row"]
