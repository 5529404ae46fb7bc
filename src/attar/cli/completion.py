"""``attar completion``: the script with which a shell completes verbs and flags."""

from typing import Literal

from tyro.conf import Positional

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Positional[Shell], /) -> None:
    """Print the script with which a shell completes the verbs and flags of attar.

    bash: attar completion bash > ~/.local/share/bash-completion/completions/attar
    zsh: attar completion zsh > a file _attar in a folder of $fpath
    fish: attar completion fish > ~/.config/fish/completions/attar.fish
    """
    from attar.cli.app import VERBS  # which lists this verb, too
    from attar.cli.parse import parse_all

    parse_all(["--tyro-print-completion", shell], VERBS)
