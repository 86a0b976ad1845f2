"""From a family's entry in the format table to a grammar of what it may write.

How each syntax of calls is written stands beside how it is read, in `gateway.splitter.payloads`.
"""
