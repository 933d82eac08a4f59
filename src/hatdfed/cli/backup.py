"""hatdfed backup, restore: copies of a coordinator's state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hatdfed.cli.console import out, print_warning

State = Annotated[Path, typer.Argument(metavar="STATE", help="The coordinator's --state folder.")]


def backup_command(
    state: State,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Folder or .tar file to make; it must not exist.")],
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Also copy this folder of certificates, with the authority's key.")
    ] = None,
) -> None:
    """Back up a coordinator's state while it runs."""
    from hatdfed.deploy.coordinator.backup import make_backup

    made = make_backup(state, target, ca)
    out.print(f"{target}: run {made.run} before round {made.round}, {made.size / 1e6:.1f} MB.", soft_wrap=True)
    if made.has_identity:
        print_warning(
            f"{target} holds the authority's private key: whoever reads it can admit anybody to this deployment. Keep "
            "it where nobody else can."
        )
    else:
        out.print("Certificates are not in it. Back up the folder `ca` too, or add --ca.", soft_wrap=True)


def restore_command(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="Made by `hatdfed backup`.")],
    state: Annotated[Path, typer.Argument(metavar="STATE", help="Folder to make for the coordinator's --state.")],
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Folder to make for the certificates, if the backup has them.")
    ] = None,
) -> None:
    """Restore a coordinator's state from a backup; nothing is overwritten."""
    from hatdfed.deploy.coordinator.backup import restore_backup

    made = restore_backup(backup, state, ca)
    out.print(
        f"{state}: run {made.run} before round {made.round}, as of {made.made_at}. Start the coordinator with the same "
        "command as before.",
        soft_wrap=True,
    )
    if ca is not None:
        out.print(
            f"{ca}: certificates as of the same time. Deny again who was denied since; tokens must be made anew.",
            soft_wrap=True,
        )
    elif made.has_identity:
        out.print("The backup holds certificates, too: --ca FOLDER restores them.", soft_wrap=True)
