"""The extension of the supervised warm-up, `arl train --init sft`.

method.py          the preparation of a run: demonstrations to rows, ranks, the exported model
demonstrations.py  rows of a file or data set as conversations, checked
written.py         conversations as rows of tokens; held_out.py: those that measure the loss
trainer.py         the training of a rank; warm_up.py: its process
"""

BUILDS_ON = ("arl_data", "arl_parsers")
"""The extensions that recognize forms of a question, and find calls in texts of any family's
notation."""
