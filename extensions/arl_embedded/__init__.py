"""The extension of the embedded engine: a transformers model behind the engine
protocol, on CPU or one GPU.

    app (HTTP) -> engine -> admission -> loop (a thread) -> batch -> decoder, sampler

One thread decodes; the event loop only parses, queues and replies. Everything that touches
weights or the batch runs on the decode thread, between two steps.
"""
