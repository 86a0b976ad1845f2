"""Reasoning markers that several formats share. Data only."""

from gateway.splitter.syntax import ReasoningMarkers

THINK = ReasoningMarkers(("<think>",), ("</think>",))
