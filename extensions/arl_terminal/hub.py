"""The remedy for each reason why the Hugging Face hub does not give a model, and the models that a
name may be a misspelling of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agentgym_rl.core import ConfigError, near_names


def remedy(id: str, error: Exception, *, revision: str | None, kind: str = "model") -> str:
    """Return what the hub refuses, and what to do, for an error of its client; the `kind` is
    "model" or "data set"."""
    from huggingface_hub import constants, errors, get_token

    is_model = kind == "model"
    url = f"{constants.ENDPOINT}/{'' if is_model else 'datasets/'}{id}"
    key = "model.revision" if is_model else "env.options.rows.revision"
    near = did_you_mean(id) if is_model else ""
    place = "HF_TOKEN" if os.environ.get("HF_TOKEN") else "`hf auth login`"
    log_in = "run `hf auth login`, or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        token = f"the account of the token from {place} has no access to it yet"
        whose = token if get_token() else f"there is no token here: {log_in}"
        return (
            f"the {kind} {id} of the Hugging Face hub is gated: accept its licence at {url} "
            f"(some owners grant access by hand), and {whose}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        private = f"it is private and the token from {place} has no access" if get_token() else ""
        return (
            f"the Hugging Face hub has no {kind} {id}, or "
            f"{private or f'it is private and there is no token here ({log_in})'}: check the id at "
            f"{url}{near}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"the {kind} {id} of the Hugging Face hub has no revision {revision!r}: leave out "
            f"{key}, or take one of {url}/commits/main"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return (
            f"the Hugging Face hub refuses the token from {place}: make another at "
            f"{constants.ENDPOINT}/settings/tokens, then {log_in} ({error.server_message or error})"
        )
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
        return (
            f"the files of the Hugging Face hub could not be kept in {constants.HF_HUB_CACHE} "
            f"({error}): make room there, or set HF_HOME to another folder"
        )
    cause = error.__cause__ or error
    offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{cause}"
    download, use = f"hf download {id}", "pass --model FOLDER"
    if not is_model:
        pinned = f" --revision {revision}" if revision else ""
        download += f" --repo-type dataset{pinned} --local-dir DIR"
        use = "pass its files, as in --data 'DIR/*.parquet'"
    return (
        f"the Hugging Face hub could not be reached ({type(cause).__name__}: {offline}). On a "
        f"machine without network: run `{download}` where there is one, copy the folder, {use}"
        f"{near}"
    )


def did_you_mean(name: str) -> str:
    """Return ". Did you mean ...?" with the models that look like `name`; "" if none does."""
    near = near_models(name)
    return f". Did you mean {' or '.join(near)}?" if near else ""


def near_models(name: str) -> list[str]:
    """Return up to three bundled models, model folders here and models in the hub's cache that look
    like `name`, the most similar first."""
    from agentgym_rl.models import BUNDLED_MODELS

    asked = name.removeprefix("./").lower()
    names = {*BUNDLED_MODELS, *_folders_here(), *_cached()} - {name}
    known = {full.lower(): full for full in sorted(names)}
    ends = {low.rpartition("/")[2]: full for low, full in known.items()}
    found = [
        *(known[near] for near in near_names(asked, known, most=3, cutoff=0.75)),
        *(ends[near] for near in near_names(asked.rpartition("/")[2], ends)),
    ]
    return list(dict.fromkeys(found))[:3]


def _folders_here() -> Iterator[str]:
    for pattern in ("*/config.json", "*/*/config.json"):
        yield from (str(file.parent) for file in Path().glob(pattern))


def _cached() -> Iterator[str]:
    with contextlib.suppress(ImportError, ConfigError):
        from huggingface_hub import constants

        for folder in Path(constants.HF_HUB_CACHE).glob("models--*"):
            yield folder.name.removeprefix("models--").replace("--", "/")
