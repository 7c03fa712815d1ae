from tests.kit.stage import chat, spell, stage, words

__all__ = ["chat", "spell", "stage", "words"]
