"""TabbyAPI's dialect: loading, tokens, templates, overrides. Its completions are OpenAI's.

Pure: bytes in, structs out; structs and progress in, bytes out.
"""
