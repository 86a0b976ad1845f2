import pytest

from gateway.prompt.conversation import closed, ends_open, unwrapped, without_opener

OPENERS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<seed:think>": "</seed:think>",
    "<think:opensource>": "</think:opensource>",
    "<longcat_think>": "</longcat_think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "◁think▷": "◁/think▷",
}


@pytest.mark.parametrize(("opener", "closer"), OPENERS.items())
def test_every_opener_has_its_closer(opener: str, closer: str) -> None:
    assert ends_open(f"…{opener}\n")
    assert closed(f"…{opener}\n") == f"…{opener}\n\n{closer}\n\n"
    assert unwrapped(f"{opener}\nHm.\n{closer}\n\nWell") == ("Hm.", "Well")
    assert unwrapped(f"\n{opener}\nHm. ") == ("Hm. ", "")
    assert without_opener(f"{opener}\nHm.") == "Hm."


@pytest.mark.parametrize("text", ["", "plain", "<|assistant|>", "[INST]", "<think>a", "</think>\n"])
def test_other_endings_open_nothing(text: str) -> None:
    assert not ends_open(text)
    assert closed(text) == text


@pytest.mark.parametrize("text", ["", "Well", "a <think>b</think>", "<b>bold</b>"])
def test_other_beginnings_hold_no_reasoning(text: str) -> None:
    assert unwrapped(text) == ("", text)
    assert without_opener(text) == text
