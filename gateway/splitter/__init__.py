"""Splits a model's text into reasoning, content and tool calls while it arrives."""

from gateway.splitter.formats import FORMATS
from gateway.splitter.payloads.syntax import Format
from gateway.splitter.recognition import Recognised, recognise
from gateway.splitter.splitter import Splitter, reasoning_ends, starts_in_reasoning
