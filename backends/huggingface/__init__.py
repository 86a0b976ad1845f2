"""What the files of a Hugging Face folder say, for every engine that reads such folders. Knows no
engine.
"""
