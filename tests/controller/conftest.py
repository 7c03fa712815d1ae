from tests.kit.groups import group

__all__ = ["group"]
