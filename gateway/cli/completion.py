"""`roundhouse completion`: a script for a shell, made of the parser.

eval "$(roundhouse completion bash)"
"""

import argparse
from argparse import Namespace

from gateway.cli.arguments import parser

BASH = """_roundhouse() {{
    local current=${{COMP_WORDS[COMP_CWORD]}}
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{names}" -- "$current"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    [[ ${{#COMPREPLY[@]}} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$current"))
}}
complete -F _roundhouse roundhouse"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def run(arguments: Namespace) -> int:
    """Prints the script for `arguments.shell`."""
    commands = options()
    if arguments.shell == "fish":
        print("\n".join(_fish(commands)))
    else:
        cases = "\n".join(
            f'        {name}) COMPREPLY=($(compgen -W "{" ".join(flags)}" -- "$current")) ;;'
            for name, flags in commands.items()
        )
        script = BASH.format(names=" ".join(commands), cases=cases)
        print((ZSH if arguments.shell == "zsh" else "") + script)
    return 0


def options() -> dict[str, list[str]]:
    """The flags of each command."""
    (commands,) = (
        action
        for action in parser()._actions  # noqa: SLF001 - argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    )
    return {name: _flags(command) for name, command in commands.choices.items()}


def _flags(command: argparse.ArgumentParser) -> list[str]:
    return [flag for action in command._actions for flag in action.option_strings]  # noqa: SLF001


def _fish(commands: dict[str, list[str]]) -> list[str]:
    lines = [f"complete -c roundhouse -n __fish_use_subcommand -a '{' '.join(commands)}'"]
    for name, flags in commands.items():
        lines += [
            f"complete -c roundhouse -n '__fish_seen_subcommand_from {name}' -l {flag[2:]}"
            for flag in flags
            if flag.startswith("--")
        ]
    return lines
