"""The common part of exllamav2 and exllamav3: a generator that steps jobs over pages of cache.

Knows neither library by name. `loading.Loaded` is what each of the two backends fills in; the
engine, its requests and their pictures work on that alone.
"""
