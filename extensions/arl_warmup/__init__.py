"""The extension of the supervised warm-up, `arl train --init sft`: the process of a rank."""
