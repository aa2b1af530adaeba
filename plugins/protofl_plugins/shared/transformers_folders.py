"""Models of the library transformers in local folders: configuration, weights as safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import protofl as pf


def library_for(who: str) -> Any:  # noqa: ANN401 - transformers is optional
    """Return the library transformers.

    Args:
        who: Needs it, for the error.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise pf.UsageError(
            f"{who} needs transformers, which is not installed: {error}",
            do="pip install 'protofl[transformers]'",
        ) from error
    return transformers


def described(folder: Path, what: str, who: str, do: str) -> tuple[Any, Any]:
    """Return the library, and the configuration of a folder's model.

    Args:
        folder: The folder that ``save_pretrained`` wrote.
        what: What the folder holds, for errors: ``text encoder``.
        who: The plugin that reads it, for errors.
        do: What to do if the folder holds none.

    Raises:
        UsageError: transformers is not installed, or the folder holds no model.
    """
    library = library_for(who)
    if not (folder / "config.json").is_file():
        raise pf.UsageError(f"{folder} holds no {what}: it has no config.json", do=do)
    if not [*folder.glob("*.safetensors")]:
        raise pf.UsageError(f"{folder} has no weights as safetensors", do=do)
    try:
        return library, library.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise pf.UsageError(f"{folder}/config.json cannot be read: {error}", do=do) from error


@contextmanager
def quiet(library: Any) -> Iterator[None]:  # noqa: ANN401 - transformers is optional
    """Let the library write no progress bars and no warnings in a block."""
    logging = library.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
