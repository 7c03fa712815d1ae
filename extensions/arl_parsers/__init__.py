"""The extension of the formats in which families of models write replies, and of grammars of them.

families                   the families' tags, as data, for these kinds of calls:
  xml_calls                  a name and tagged values, in blocks
  named_calls                arrays of JSON objects, or a name and JSON, in blocks
  message_calls, literals    complete messages: JSON, or Python's notation; Gemma's notation
  harmony                    channels
response_template          the tokenizer's own description of replies
thoughts                   the families' tags of thoughts
calls_in_text              calls in a complete reply, in whatever family's notation
grammars, lark             grammars of the replies that parsers accept, as llguidance reads them
"""
