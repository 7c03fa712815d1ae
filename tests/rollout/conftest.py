from tests.kit.groups import row

__all__ = ["row"]
