"""`roundhouse completion`: a script for a shell, made of the parser.

eval "$(roundhouse completion bash)"
"""

import argparse
from argparse import Namespace
from collections.abc import Mapping

from gateway.cli.arguments import parser

# Names come from a server, so they are compared and quoted, not given to `compgen -W`, which would
# run a `$(…)` in them. bash ends a word at a colon, which names have, and replaces what follows it.
BASH = """_roundhouse_models() {{
    local line=${{COMP_LINE:0:COMP_POINT}} whole name
    whole=${{line##* }}
    [[ $whole != -* ]] || return
    COMPREPLY=()
    while IFS= read -r name; do
        if [[ $name == "$whole"* ]]; then
            [[ $whole == *:* && $COMP_WORDBREAKS == *:* ]] && name=${{name#"${{whole%:*}}:"}}
            COMPREPLY+=("$(printf %q "$name")")
        fi
    done < <(roundhouse models --names 2>/dev/null)
}}
_roundhouse() {{
    local current=${{COMP_WORDS[COMP_CWORD]}}
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{names}" -- "$current"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case ${{COMP_WORDS[1]}} in
        {naming}) _roundhouse_models; return ;;
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
        naming = "|".join(_naming_models())
        script = BASH.format(names=" ".join(commands), cases=cases, naming=naming)
        print((ZSH if arguments.shell == "zsh" else "") + script)
    return 0


def options() -> dict[str, list[str]]:
    """The flags of each command."""
    return {
        name: [flag for action in command._actions for flag in action.option_strings]  # noqa: SLF001
        for name, command in _commands().items()
    }


def _commands() -> Mapping[str, argparse.ArgumentParser]:
    (commands,) = (
        action
        for action in parser()._actions  # noqa: SLF001 - argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    )
    return commands.choices


def _naming_models() -> list[str]:
    """The commands whose argument is the name of a server's model; others take files."""
    return [
        name
        for name, command in _commands().items()
        if any(action.dest == "model" and action.metavar == "MODEL" for action in command._actions)  # noqa: SLF001
    ]


def _fish(commands: dict[str, list[str]]) -> list[str]:
    lines = [f"complete -c roundhouse -n __fish_use_subcommand -a '{' '.join(commands)}'"]
    for name, flags in commands.items():
        lines += [
            f"complete -c roundhouse -n '__fish_seen_subcommand_from {name}' -l {flag[2:]}"
            for flag in flags
            if flag.startswith("--")
        ]
    naming = " ".join(_naming_models())
    names = "(roundhouse models --names 2>/dev/null)"
    return [
        *lines,
        f"complete -c roundhouse -n '__fish_seen_subcommand_from {naming}' -f -a '{names}'",
    ]
