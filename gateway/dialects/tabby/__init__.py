"""TabbyAPI's dialect: loading, tokens, templates, overrides. Its completions are OpenAI's.

Pure: bytes in, structs out; structs and progress in, bytes out.
"""

from gateway.dialects.dialect import Dialect
from gateway.dialects.openai.models import Problem, problem_body

DIALECT = Dialect(name="Tabby", tag="TabbyAPI", error_body=problem_body, error=Problem)
