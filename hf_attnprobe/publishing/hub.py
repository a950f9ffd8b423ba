"""Repositories of the Hub: made, read and written in one commit, errors in one line."""

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from hf_attnprobe.checkpoints.origins import first_line
from hf_attnprobe.errors import AttnProbeError


Kind = Literal["model", "dataset"]
AGAIN = "nothing here is lost: run the same command again"


@dataclass(frozen=True)
class Hub:
    """Writes repositories.

    Attributes:
        token: that may write; None: the one that is logged in.
        private: whether new repositories are private.
    """

    token: str | None = field(default=None, repr=False)
    private: bool = False

    @property
    def api(self) -> HfApi:
        """The client."""
        return HfApi(token=self.token)

    def make(self, repository: str, kind: Kind) -> str:
        """Makes a repository where there is none.

        Returns:
            Its address.

        Raises:
            AttnProbeError: the token may not, the organisation is not there, no network.
        """
        with _reported(repository, kind):
            made = self.api.create_repo(
                repository,
                repo_type=kind,
                # Of one that is there nothing is changed.
                private=self.private or None,
                exist_ok=True,
            )
        return str(made)

    def text(self, repository: str, kind: Kind, path: str) -> str | None:
        """A text file of a repository; None where there is none.

        Raises:
            AttnProbeError: as :meth:`make`.
        """
        with _reported(repository, kind):
            try:
                file = self.api.hf_hub_download(repository, path, repo_type=kind)
            except (EntryNotFoundError, RepositoryNotFoundError):
                return None
            with Path(file).open(newline="", encoding="utf-8-sig") as opened:
                return opened.read()

    def commit(self, repository: str, kind: Kind, files: Mapping[str, Path | bytes]) -> None:
        """Writes files in one commit: all of them or none.

        Raises:
            AttnProbeError: as :meth:`make`.
        """
        operations = [
            CommitOperationAdd(path, str(file) if isinstance(file, Path) else io.BytesIO(file))
            for path, file in files.items()
        ]
        with _reported(repository, kind):
            self.api.create_commit(
                repository,
                operations,
                repo_type=kind,
                commit_message="attnprobe card",
            )


@contextlib.contextmanager
def _reported(repository: str, kind: Kind) -> Iterator[None]:
    """Turns whatever the client raises into one line that says what to do."""
    try:
        yield
    except Exception as error:  # its own errors, those of the network, of the disk
        what = f"cannot publish the {kind} {repository}"
        raise AttnProbeError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why, and what to do."""
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set; unset it and {AGAIN}"
    if isinstance(error, HfHubHTTPError):
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        said = first_line(error)
        if status in (401, 403):
            return (
                f"the token may not write there ({said}); give one that may with --token "
                "or hf auth login"
            )
        if status == 404:
            return f"there is no such organisation or repository ({said}); mend ORG/NAME"
        return f"{constants.ENDPOINT} refused it ({said}); {AGAIN}"
    return (
        f"the connection to {constants.ENDPOINT} failed ({type(error).__name__}: "
        f"{first_line(error)}); {AGAIN}"
    )
