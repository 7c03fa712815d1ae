from tests.kit.someones_eval import key

__all__ = ["key"]
